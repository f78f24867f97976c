"""The paper's evaluation: its numbers, its claims and its figures, made again."""

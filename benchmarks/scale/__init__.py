"""How a round's cost grows."""

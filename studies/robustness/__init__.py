"""Accuracy with faulty clients: every method under every defence."""

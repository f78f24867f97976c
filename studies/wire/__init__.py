"""Accuracy against bytes up: the forms of `wire`, under three methods."""

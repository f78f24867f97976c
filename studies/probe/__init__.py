"""How many rows the probe needs, and which."""

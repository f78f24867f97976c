"""Studies on top of the package; they are not installed with it."""

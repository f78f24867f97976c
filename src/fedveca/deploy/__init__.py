"""An experiment on real machines: the server's half, a node's half, and a complete federation on one machine."""

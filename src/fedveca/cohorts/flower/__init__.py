"""Clients on Flower nodes: the only place that imports flwr."""

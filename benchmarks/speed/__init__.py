"""Seconds per job compared with other federated-learning frameworks."""

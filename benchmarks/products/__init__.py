"""The board, the report, imports and deployments."""

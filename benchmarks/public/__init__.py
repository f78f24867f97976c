"""The speed benchmarks that other frameworks publish, with their settings."""

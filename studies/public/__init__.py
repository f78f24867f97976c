"""Public tables, entered with our methods: the published numbers next to ours."""

"""Public tables, entered with our methods: the published numbers beside ours."""

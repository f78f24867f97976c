"""What an operations team watches: figures for Prometheus, a dashboard for Grafana, and logs as JSON."""

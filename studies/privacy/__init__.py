"""What differential privacy costs."""

"""FedVeca."""

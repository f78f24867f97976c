"""FedVeca under secure aggregation: the controller without the clients' numbers."""

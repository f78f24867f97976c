"""Secure aggregation (Bonawitz et al. 2017): the server learns the sum of the clients' vectors and none of them."""

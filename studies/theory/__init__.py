"""What the paper's theory says about FedVeca's runs."""

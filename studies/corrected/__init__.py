"""FedVeca corrected compared with every method, and what each part of it does."""

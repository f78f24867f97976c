"""Each framework's way to run a job."""

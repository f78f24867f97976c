"""Wang et al. 2019's experiment: what a number of local steps is worth in 15 simulated seconds."""

"""`python -m studies.robustness`: see run.py."""

from studies.robustness.run import main

main()

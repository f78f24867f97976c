"""`python -m studies.guard`: see run.py."""

from studies.guard.run import main

main()

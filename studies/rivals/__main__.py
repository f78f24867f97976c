"""`python -m studies.rivals`: see run.py."""

from studies.rivals.run import main

main()

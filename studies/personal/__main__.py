"""`python -m studies.personal`: see run.py."""

from studies.personal.run import main

main()

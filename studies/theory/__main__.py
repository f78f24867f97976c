"""`python -m studies.theory`: see run.py."""

from studies.theory.run import main

main()

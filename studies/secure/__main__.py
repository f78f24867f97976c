"""`python -m studies.secure`: see run.py."""

from studies.secure.run import main

main()

"""`python -m studies.corrected`: see run.py."""

from studies.corrected.run import main

main()

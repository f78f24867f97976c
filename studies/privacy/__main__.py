"""`python -m studies.privacy`: see run.py."""

from studies.privacy.run import main

main()

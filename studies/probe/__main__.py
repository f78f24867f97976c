"""`python -m studies.probe`: see run.py."""

from studies.probe.run import main

main()

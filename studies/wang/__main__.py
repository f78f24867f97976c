"""`python -m studies.wang`: see run.py."""

from studies.wang.run import main

main()

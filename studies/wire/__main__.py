"""`python -m studies.wire`: see run.py."""

from studies.wire.run import main

main()

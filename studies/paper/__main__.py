"""`python -m studies.paper table1 --seeds 10` is `fedveca reproduce table1 --seeds 10`."""

import sys

from fedveca.cli import main

sys.exit(main(["reproduce", *sys.argv[1:]]))

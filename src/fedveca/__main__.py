"""`python -m fedveca`."""

import sys

from fedveca.cli import main

sys.exit(main())

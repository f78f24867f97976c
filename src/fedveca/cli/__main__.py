"""`python -m fedveca.cli`."""

import sys

from fedveca.cli import main

sys.exit(main())

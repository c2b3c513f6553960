"""`python -m likewise`: the command where its script is not on the path."""

import sys

from likewise.cli import main

sys.exit(main())

"""`python -m likewise`: the command where its script is not on the path."""

from likewise.cli import main

raise SystemExit(main())

"""``python -m jobs`` is the command ``jobs``."""

from jobs.cli import main

raise SystemExit(main())

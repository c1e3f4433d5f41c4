"""The command line: ``jobs COMMAND``.

Each command is a module of this package with ``add_parser(sub)``, which describes it to argparse
and names its ``run(args) -> int``, the exit status.
"""

from jobs.cli.app import main

__all__ = ["main"]

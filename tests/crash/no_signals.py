"""``jobs`` on a loop that has no signal handlers, as those of Windows."""

from __future__ import annotations

import asyncio
import sys

from jobs.cli import main, serving


class NoSignals(asyncio.SelectorEventLoop):
    """Refuses signal handlers as the base class does."""

    add_signal_handler = asyncio.AbstractEventLoop.add_signal_handler
    remove_signal_handler = asyncio.AbstractEventLoop.remove_signal_handler


if __name__ == "__main__":
    serving.loop_factory = lambda: NoSignals
    sys.exit(main())

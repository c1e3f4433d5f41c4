"""Let the signals that end a process ask for a stop instead."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from jobs.errors import ConfigError

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def on_stop_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` in the running event loop at each SIGTERM and SIGINT while the block lasts.

    Handlers that were there before are back afterwards.

    Raises:
        ConfigError: This is not the main thread, the only one that can receive signals.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError(
            "signals cannot be received outside the main thread",
            fix="Call run(signals=False), and ask for the stop through "
            "loop.call_soon_threadsafe(service.stop).",
        )
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        for number in _SIGNALS:
            stack.callback(_install(loop, number, stop))
        yield


def _install(
    loop: asyncio.AbstractEventLoop, number: signal.Signals, stop: Callable[[], None]
) -> Callable[[], object]:
    """Install one handler; return the function that restores what was there."""
    before = signal.getsignal(number)
    try:
        loop.add_signal_handler(number, stop)
    except (NotImplementedError, RuntimeError):
        # A loop without signals (Windows): Python's own handlers run in the main thread.
        def handler(_number: int, _frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(stop)

        signal.signal(number, handler)
        return lambda: signal.signal(number, signal.SIG_DFL if before is None else before)
    of_the_loop = signal.getsignal(number) is before  # it had one there itself, now overwritten

    def restore() -> None:
        loop.remove_signal_handler(number)
        if before is not None and not of_the_loop:
            signal.signal(number, before)

    return restore

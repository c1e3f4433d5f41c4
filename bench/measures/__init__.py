"""The measurements, by the name that `--only` takes.

Each is a module with `run(run)`, which adds figures.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.measures import (
    backlog,
    blocked,
    drain,
    enqueue,
    idle,
    latency,
    memory,
    rescue,
    snapshot,
    startup,
)
from bench.run import Run

MEASURES: dict[str, Callable[[Run], None]] = {
    "enqueue": enqueue.run,
    "drain": drain.run,
    "latency": latency.run,
    "idle": idle.run,
    "backlog": backlog.run,
    "snapshot": snapshot.run,
    "blocked": blocked.run,
    "memory": memory.run,
    "startup": startup.run,
    "rescue": rescue.run,
}

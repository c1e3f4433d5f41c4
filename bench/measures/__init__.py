"""The measurements, by the name that `--only` takes.

Each is a module with `run(run)`, which adds figures. One that needs a part of the library that does
not exist yet is listed in NOT_YET, and is reported so; to add it, write its module and move its
name to MEASURES.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.measures import (
    backlog,
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
    "memory": memory.run,
    "startup": startup.run,
    "rescue": rescue.run,
}

NOT_YET: dict[str, str] = {
    "blocked key": "10,000 jobs blocked on one key: the library has no keyed concurrency yet",
    "wake": "latency and idle cost with a wake by notification: the library polls until then",
}

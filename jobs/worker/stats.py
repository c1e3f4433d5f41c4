"""What a worker says about itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["idle", "starting", "running", "draining", "stopped"]


@dataclass(slots=True)
class WorkerStats:
    """What a worker has done since it started.

    Attributes:
        name: Label of the worker.
        state: idle (not started), starting, running, draining or stopped.
        in_flight: Jobs claimed and not settled yet.
        claimed: Claims, rescued jobs included.
        completed: Jobs that ended well.
        retried: Failed attempts that leave the job ready for another.
        ended: Jobs that ended as dead or failed by a settle of this worker.
        cancelled: Jobs that ended as cancelled by a settle of this worker: an operator asked for
            it, or a waiting sibling of the same key does the work.
        buried: Jobs whose lease had lapsed on their last attempt or after a cancel, ended by a
            claim of this worker.
        released: Jobs handed back without using an attempt (drain, unknown name).
        lost: Runs whose lease was lost; nothing of them was recorded.
        abandoned: Runs that did not stop when the worker did. Their leases lapse.
    """

    name: str
    state: State = "idle"
    in_flight: int = 0
    claimed: int = 0
    completed: int = 0
    retried: int = 0
    ended: int = 0
    cancelled: int = 0
    buried: int = 0
    released: int = 0
    lost: int = 0
    abandoned: int = 0

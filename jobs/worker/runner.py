"""The task of a slot, which takes job after job."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any

from jobs.worker.held import Held
from jobs.worker.lane import Lane


class Runner(asyncio.Task[None]):
    """A slot at work. It is ended by the cancellation of its job, and replaced.

    Attributes:
        lane: Whose slot it is.
        job: The job it runs, None between two.
        parked: What wakes it up when it has nothing to do.
    """

    def __init__(
        self,
        work: Coroutine[Any, Any, None],
        lane: Lane,
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
    ) -> None:
        super().__init__(work, loop=loop, name="jobs:slot", context=context)
        self.lane = lane
        self.job: Held | None = None
        self.parked: asyncio.Future[None] | None = None

    def get_name(self) -> str:
        """Names the job while there is one, for whoever asks what the event loop is doing."""
        job = self.job
        return super().get_name() if job is None else f"job:{job.row.name}:{job.row.id}"

    @property
    def spent(self) -> bool:
        """Whether a cancellation was asked of it that could still meet its next job."""
        return self.cancelling() > 0 or bool(getattr(self, "_must_cancel", False))

"""Several services in one process: started together, and stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from jobs.service.life import Service
from jobs.service.signals import on_stop_signal

logger = logging.getLogger("jobs.service")


async def run_together(services: Sequence[Service], *, signals: bool = True) -> None:
    """Start services, serve until one of them stops or a signal comes, then drain all of them.

    Args:
        services: None of them started, each with a stop of its own that is bounded in time.
        signals: Whether SIGTERM and SIGINT ask all of them for a stop, and a second one hurries
            them. Only possible in the main thread.

    Raises:
        ConfigError: ``signals`` outside the main thread.
        JobsError: As the start, or the end, of a service raised; the others have been stopped
            before. Where several went wrong the first is raised and the others are logged.
    """

    def stop() -> None:
        for service in services:
            service.stop()

    with on_stop_signal(stop) if signals else contextlib.nullcontext():
        tasks = [
            asyncio.create_task(service.run(signals=False), name=f"jobs:run {service.noun}")
            for service in services
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for service, task in zip(services, tasks, strict=True):
                if not task.done() and not service.stopping:
                    service.stop()  # a second one would hurry it
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
    _raise_first(services, tasks)


def _raise_first(services: Sequence[Service], tasks: Sequence[asyncio.Task[None]]) -> None:
    failed = [
        (service, error)
        for service, task in zip(services, tasks, strict=True)
        if (error := task.exception()) is not None
    ]
    for service, error in failed:
        logger.error(
            "%s %s failed: %s",
            service.noun,
            service.name,
            " ".join(str(error).split()),
            extra={"event": "jobs.service.failed", "service": service.noun},
        )
    if failed:
        raise failed[0][1]

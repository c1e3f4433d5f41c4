"""What a worker says about itself."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from jobs.errors import CompletionRolledBack
from jobs.service.life import State
from jobs.worker.held import Held

logger = logging.getLogger("jobs.worker")


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
        tenants_counted: Tenants that hold a job here, where tenants are limited.
        tenants_paced: Tenants whose pace is remembered, where it is limited.
        tenants_refused: Tenants that were left out of a claim in the last minute or two, because
            they were full or too fast.
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
    tenants_counted: int = 0
    tenants_paced: int = 0
    tenants_refused: int = 0


def account(stats: WorkerStats, job: Held, verdict: str, state: str | None) -> None:
    """Count the answer to a settle, and log what somebody should know of.

    Args:
        stats: Changed in place.
        job: The job, with the outcome that was sent.
        verdict: landed, repeated, lost or refused.
        state: The state the job is in now; None unless landed.
    """
    if state == "completed" and verdict == "landed":
        stats.completed += 1  # most jobs, and nobody needs to be told
        return
    outcome = job.outcome
    about = (job.id, job.row.name)
    extra = {"job": str(job.id), "state": state}
    if verdict in ("lost", "refused"):
        stats.lost += 1
        logger.error(
            "the outcome of job %s (%s) was not recorded: %s",
            *about,
            "its lease had been lost" if verdict == "lost" else "the database refuses it",
            extra=extra | {"event": "jobs.settle.unowned"},
        )
    elif verdict == "repeated" and job.completion_landed:
        stats.completed += 1
        error = outcome.error_type if outcome is not None else None
        if error not in (None, CompletionRolledBack.__qualname__):
            logger.warning(
                "job %s (%s) stays completed: its function went wrong after run.complete() had "
                "been committed",
                *about,
                extra=extra | {"event": "jobs.run.failed_after_completion"},
            )
    elif state == "cancelled" or (outcome is not None and outcome.kind == "cancelled"):
        stats.cancelled += 1
        logger.info(
            "job %s (%s) ended as cancelled",
            *about,
            extra=extra | {"event": "jobs.worker.cancelled"},
        )
    elif outcome is None or outcome.kind == "released":
        stats.released += 1
    elif outcome.kind == "completed":
        stats.completed += 1
    elif state is None or state == "ready":
        stats.retried += 1
    else:
        stats.ended += 1
        logger.error(
            "job %s (%s) ended as %s in attempt %d of %d",
            *about,
            state,
            job.row.attempt,
            job.row.max_attempts,
            extra=extra | {"event": "jobs.worker.ended"},
        )

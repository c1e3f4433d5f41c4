"""What a worker says about itself."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from jobs.errors import CompletionRolledBack
from jobs.hooks import SettledOutcome, StopReason
from jobs.service.life import State
from jobs.worker.held import Held
from jobs_sql.claim import ClaimJobsRow

LAPSED: Final = "LeaseLapsed"
"""What stands for the error of an attempt whose lease lapsed."""

REFUSED: Final = "JobRefused"
"""What stands for the error of a job that was refused, and so was not tried."""

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
        terminal: Those of them whose error said that no further attempt could help; the others had
            used up their attempts.
        cancelled: Jobs that ended as cancelled by a settle of this worker: an operator asked for
            it, or a waiting sibling of the same key does the work.
        buried: Jobs whose lease had lapsed on their last attempt or after a cancel, ended by a
            claim of this worker.
        refused: Jobs that found their concurrency key in full use and were declared not to wait.
        released: Jobs handed back without using an attempt (drain, unknown name).
        snoozed: Runs that asked to run again later, which uses no attempt either.
        lost: Runs whose lease was lost; nothing of them was recorded.
        abandoned: Runs that did not stop when the worker did. Their leases lapse.
        tenants_counted: Tenants that hold a job here, where tenants are limited.
        tenants_paced: Tenants whose pace is remembered, where it is limited.
        tenants_refused: Tenants that were left out of a claim in the last minute or two, because
            they were full or too fast.
        unsettled: Outcomes that the worker could not settle before it stopped. Their leases lapse.
        hooks_failed: Hooks of ended jobs that were given up.
    """

    name: str
    state: State = "idle"
    in_flight: int = 0
    claimed: int = 0
    completed: int = 0
    retried: int = 0
    ended: int = 0
    terminal: int = 0
    cancelled: int = 0
    buried: int = 0
    refused: int = 0
    released: int = 0
    snoozed: int = 0
    lost: int = 0
    abandoned: int = 0
    tenants_counted: int = 0
    tenants_paced: int = 0
    tenants_refused: int = 0
    unsettled: int = 0
    hooks_failed: int = 0


def ending(
    job: Held, verdict: str, state: str | None
) -> tuple[SettledOutcome, StopReason | None] | None:
    """How a job ended whose settle was answered, and the stop reason that is on its row.

    Args:
        job: The job, with the outcome that was sent.
        verdict: landed, repeated, lost or refused.
        state: The state the job is in now, None where that is not known.

    Returns:
        None for a job that has not ended, was cancelled, or of which nothing was recorded.
    """
    if job.outcome is None:
        return None
    kind = job.outcome.kind
    if state == "completed" or (
        verdict == "repeated" and (job.completion_landed or kind == "completed")
    ):
        return "completed", None
    if state not in ("dead", "failed"):
        return None
    if kind == "refused":
        return "refused", "refused"
    return ("dead" if state == "dead" else "failed"), (
        "terminal" if kind == "dead" else "exhausted"
    )


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
    elif outcome.kind == "snoozed":
        stats.snoozed += 1
    elif outcome.kind == "completed":
        stats.completed += 1
    elif state is None or state == "ready":
        stats.retried += 1
    else:
        stats.ended += 1
        over = ending(job, verdict, state)
        reason = None if over is None else over[1]
        stats.terminal += reason == "terminal"
        logger.error(
            "job %s (%s) ended as %s (%s) in attempt %d of %d",
            *about,
            state,
            reason,
            job.row.attempt,
            job.row.max_attempts,
            extra=extra | {"event": "jobs.worker.ended", "stop_reason": reason},
        )


def account_ended(
    stats: WorkerStats, row: ClaimJobsRow
) -> tuple[SettledOutcome, StopReason, str, str] | None:
    """Count and log a job that a claim has ended.

    Returns:
        How it ended, why, and the type and text of the error that a hook is told; None where it
        was cancelled.
    """
    if row.verdict == "refused":
        stats.refused += 1
        logger.warning(
            "job %s (%s) was refused: its concurrency key is in full use",
            row.id,
            row.name,
            extra={"event": "jobs.worker.refused", "job": str(row.id), "stop_reason": "refused"},
        )
        return "refused", "refused", REFUSED, "its concurrency key was in full use"
    stats.buried += 1
    if row.verdict == "cancelled":
        logger.info(
            "job %s (%s) was ended as cancelled when its lease lapsed",
            row.id,
            row.name,
            extra={"event": "jobs.worker.cancelled", "job": str(row.id), "state": "cancelled"},
        )
        return None
    logger.error(
        "job %s (%s) was ended: its lease lapsed in attempt %d of %d",
        row.id,
        row.name,
        row.attempt,
        row.max_attempts,
        extra={
            "event": "jobs.worker.buried",
            "job": str(row.id),
            "stop_reason": "lease lapsed",
        },
    )
    outcome: SettledOutcome = "failed" if row.verdict == "failed" else "dead"
    return outcome, "lease lapsed", LAPSED, "its lease lapsed in the last attempt"

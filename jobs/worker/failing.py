"""From what a job function raised to the outcome that is settled, and what the log says of it."""

from __future__ import annotations

import logging
from datetime import timedelta

from jobs.classify import Layer, Reading, read_error, read_snooze
from jobs.retry import Retry, is_final
from jobs.texts import replaced, text_of, trace_of
from jobs.worker.held import Held, Outcome

logger = logging.getLogger("jobs.worker")

MESSAGE_LIMIT = 4_000
TRACEBACK_LIMIT = 32_000
# Of a message, in the log.
_SHOWN = 500


def storable(text: str, limit: int, *, keep_end: bool = False) -> str:
    """Bound a text and replace what a PostgreSQL text cannot hold (NUL, lone surrogates)."""
    surplus = len(text) - limit
    kept = text if surplus <= 0 else text[-limit:] if keep_end else text[:limit]
    clean = replaced(kept)
    if surplus <= 0:
        return clean
    cut = f"[{surplus} characters cut]"
    return f"{cut}\n{clean}" if keep_end else f"{clean} {cut}"


def failure(
    error: BaseException,
    delay: timedelta,
    terminal: str | None = None,
    trace: str | None = None,
) -> Outcome:
    """The outcome of an attempt that raised. Never raises, whatever the error does when it is
    looked at.

    Args:
        error: What was raised.
        delay: Until the next attempt. The database turns it into the end of the job where no
            attempt is left.
        terminal: What tells that no further attempt can help, which ends the job; None where
            nothing does.
        trace: Its traceback, where that is known already.
    """
    message = storable(text_of(error), MESSAGE_LIMIT)
    if terminal is not None:
        message = f"{message} (terminal: {storable(terminal, 500)})"
    return Outcome(
        "retry" if terminal is None else "dead",
        delay,
        storable(type(error).__qualname__, 255),
        message,
        storable(trace_of(error) if trace is None else trace, TRACEBACK_LIMIT, keep_end=True),
    )


def snoozed(job: Held, error: BaseException) -> Outcome | None:
    """The outcome of a function that asked to run later; None where it did not."""
    delay = read_snooze(error)
    if delay is None:
        return None
    logger.info(
        "job %s (%s) snoozes for %s",
        job.id,
        job.row.name,
        delay,
        extra={
            "event": "jobs.run.snoozed",
            "job": str(job.id),
            "delay": delay.total_seconds(),
        },
    )
    return Outcome("snoozed", delay)


def decide(job: Held, error: BaseException, retry: Retry, layers: tuple[Layer, ...]) -> Outcome:
    """Read an error, log it, and say what becomes of the job.

    Args:
        job: The job whose attempt failed.
        error: What was raised.
        retry: Its curve and ceiling.
        layers: The rules that hold for its errors.
    """
    reading = read_error(error, *layers)
    if reading.kind == "later":
        delay = min(reading.delay, retry.max_delay)
    else:
        delay = retry.delay_for(job.row.attempt)
    trace = trace_of(error)
    outcome = failure(error, delay, reading.why if reading.kind == "terminal" else None, trace)
    # Not where it holds megabytes, or what the encoding of a log file does not take.
    _say_failed(job, error if outcome.traceback == trace else None, outcome, reading)
    return outcome


def _say_failed(job: Held, shown: BaseException | None, outcome: Outcome, reading: Reading) -> None:
    if reading.kind == "terminal":
        then = "no further attempt can help"
    elif is_final(job.row.attempt, job.row.max_attempts):
        then = "that was the last attempt"
    else:
        then = f"the next attempt is due in {outcome.delay}"
    logger.warning(
        "job %s (%s) failed in attempt %d of %d, %s: %s: %s",
        job.id,
        job.row.name,
        job.row.attempt,
        job.row.max_attempts,
        then,
        outcome.error_type,
        (outcome.error_message or "")[:_SHOWN],
        exc_info=shown,
        extra={
            "event": "jobs.run.attempt_failed",
            "job": str(job.id),
            "reading": reading.kind,
            "reading_by": reading.why,
            "delay": outcome.delay.total_seconds(),
        },
    )

"""What an operator does to jobs and queues: cancel, requeue, pause, resume.

Every function takes a synchronous connection and returns its result, or an asynchronous one and
returns an awaitable of it. Nothing is committed: on a connection in autocommit mode each call acts
at once, elsewhere with the caller's transaction, which keeps the rows locked until then.
"""

from jobs.control.asking import MAX_JOBS, PATIENCE
from jobs.control.cancelling import Cancellation, cancel, cancel_many
from jobs.control.pausing import Pause, pause, pauses, resume
from jobs.control.requeueing import Requeueing, requeue, requeue_many

__all__ = [
    "MAX_JOBS",
    "PATIENCE",
    "Cancellation",
    "Pause",
    "Requeueing",
    "cancel",
    "cancel_many",
    "pause",
    "pauses",
    "requeue",
    "requeue_many",
    "resume",
]

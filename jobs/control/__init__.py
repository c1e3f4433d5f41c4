"""What an operator does to jobs, queues and schedules: cancel, requeue, pause, make, change.

Every function takes a synchronous connection and returns its result, or an asynchronous one and
returns an awaitable of it. Nothing is committed: on a connection in autocommit mode each call acts
at once, elsewhere with the caller's transaction, which keeps the rows locked until then.
"""

from jobs.control.asking import MAX_JOBS, PATIENCE
from jobs.control.cancelling import Cancellation, cancel, cancel_many
from jobs.control.pausing import Pause, pause, pauses, resume
from jobs.control.requeueing import Requeueing, requeue, requeue_many
from jobs.control.scheduling import (
    Schedule,
    change_schedule,
    create_schedule,
    get_schedule,
    pause_task,
    rearm_schedule,
    remove_schedule,
    resume_task,
    schedules,
)

__all__ = [
    "MAX_JOBS",
    "PATIENCE",
    "Cancellation",
    "Pause",
    "Requeueing",
    "Schedule",
    "cancel",
    "cancel_many",
    "change_schedule",
    "create_schedule",
    "get_schedule",
    "pause",
    "pause_task",
    "pauses",
    "rearm_schedule",
    "remove_schedule",
    "requeue",
    "requeue_many",
    "resume",
    "resume_task",
    "schedules",
]

"""The worker process."""

from jobs.worker.limits import Limits
from jobs.worker.stats import WorkerStats
from jobs.worker.worker import Worker

__all__ = ["Limits", "Worker", "WorkerStats"]

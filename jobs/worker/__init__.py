"""The worker process."""

from jobs.worker.stats import WorkerStats
from jobs.worker.worker import Worker

__all__ = ["Worker", "WorkerStats"]

"""The worker process."""

from jobs.worker.worker import Worker, WorkerStats

__all__ = ["Worker", "WorkerStats"]

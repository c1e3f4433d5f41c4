"""The scheduler: fires what is due, each occurrence once, however many schedulers there are."""

from jobs.scheduler.scheduler import Scheduler
from jobs.scheduler.stats import SchedulerStats

__all__ = ["Scheduler", "SchedulerStats"]

"""Fixtures of the tests of worker processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.crash.bench import Bench
from tests.support.workers import WorkerProcess


@pytest.fixture
def bench(database: str, worker_process: Callable[..., WorkerProcess]) -> Iterator[Bench]:
    """A database with the table of events, and worker processes on it."""
    bench = Bench(database, worker_process)
    yield bench
    bench.conn.close()

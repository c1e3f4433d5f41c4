"""Behind PgBouncer in transaction mode a scheduler leads and fires: its lease is a row."""

from __future__ import annotations

import pytest

from devkit import pgbouncer
from tests.runtime.test_worker_pooler import DROPPED, REFUSED, pooled
from tests.runtime.ticking import fired, make, schedule, store
from tests.runtime.working import until
from tests.support.server import Clones

pytestmark = pytest.mark.skipif(
    pgbouncer.find() is None,
    reason="pgbouncer is not installed (Debian: apt-get install pgbouncer)",
)


@pytest.mark.parametrize("settings", [REFUSED, DROPPED], ids=["refused", "dropped"])
async def test_behind_a_pooler_it_fires_all_the_same(
    clones: Clones, database: str, settings: dict[str, str]
) -> None:
    store(database, "ticking")
    with pooled(clones, database, settings) as dsn:
        async with make(dsn) as scheduler:
            await until(lambda: len(fired(database, "ticking")) >= 2, "two fires")
            assert scheduler.stats().fired >= 1
        assert schedule(database, "ticking").last_occurrence is not None

"""Behind PgBouncer in transaction mode a relay works, by looking."""

from __future__ import annotations

import pytest

from devkit import pgbouncer
from tests.runtime.relaying import make, outbox, queued, stage
from tests.runtime.test_worker_pooler import DROPPED, REFUSED, pooled
from tests.runtime.working import logged, until
from tests.support.server import Clones

pytestmark = pytest.mark.skipif(
    pgbouncer.find() is None,
    reason="pgbouncer is not installed (Debian: apt-get install pgbouncer)",
)


@pytest.mark.parametrize("settings", [REFUSED, DROPPED], ids=["refused", "dropped"])
@pytest.mark.parametrize("target", ["the same database", "another database"])
async def test_every_row_is_published(
    clones: Clones, database: str, settings: dict[str, str], target: str
) -> None:
    with clones.clone() as other, pooled(clones, database, settings) as dsn:
        to = None if target == "the same database" else other
        async with make(dsn, to, batch=4) as relay:
            ids = stage(database, *range(10))
            await until(lambda: relay.stats().published == 10, "every row")
            await until(lambda: not relay.stats().failed, "no failure")
        assert queued(to or database) == ids
        assert {row.outcome for row in outbox(database)} == {"created"}


async def test_it_says_that_it_cannot_hear(
    clones: Clones,
    database: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jobs.service.listener.PROOF_WITHIN", 0.2)
    with pooled(clones, database, DROPPED) as dsn:
        async with make(dsn):
            await until(lambda: logged(caplog, "jobs.relay.wake_deaf"), "the warning")

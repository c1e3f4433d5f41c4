"""What each step writes ahead: the payload at the enqueue and at the end, and never in between.

Bytes a job in batches, as pg_stat_statements counts them. The server of the tests writes no full
page images: they depend on the last checkpoint and not on the statement.
"""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from psycopg import Connection

from tests.sql.calls import Held, Item, enqueue_many
from tests.sql.test_enqueue_many import arrays
from tests.sql.volume import claiming, never_analysed, renewing, settling
from tests.support.buffers import explain

pytestmark = pytest.mark.majors

Conn = Connection[Any]

KILOBYTE = 1000
MEGABYTE = 1_000_000

# Bytes a job. Measured on PostgreSQL 18 at batch 100: 396 to 450, 134 to 200, 647 to 703, 365 to
# 430, the same for 60 bytes of payload and for a megabyte.
CLAIM, RENEW, RETRY, RELEASE = 550, 260, 850, 550


def payload(size: int) -> str:
    """A JSON text that does not compress."""
    return '{"d":"' + secrets.token_urlsafe(size)[: size - 8] + '"}'


class Steps:
    """The life of some jobs with a payload of a size, in measured steps."""

    def __init__(self, conn: Conn, size: int) -> None:
        never_analysed(conn)
        self.conn = conn
        self.size = size
        self.count = 100 if size < MEGABYTE else 5
        # Neighbours on the pages, as in a queue with a backlog.
        others = self.count if size >= MEGABYTE else 1000
        enqueue_many(conn, [Item(input=payload(size)) for _ in range(others)], queue="others")

    def a_job(self, name: str, params: dict[str, Any]) -> float:
        """Bytes written ahead by one statement, for each of its rows."""
        plan = explain(self.conn, name, **params)
        assert plan.rows == self.count
        return plan.wal_bytes / plan.rows

    def enqueue(self) -> float:
        """In one bulk."""
        inputs = [payload(self.size) for _ in range(self.count)]
        params = arrays([None] * self.count) | {"inputs": inputs, "max_attempts": 9}
        return self.a_job("EnqueueJobs", params)

    def claim(self) -> float:
        """All of them."""
        return self.a_job("ClaimJobs", claiming({"q": self.count}))

    @property
    def held(self) -> list[Held]:
        """What is running."""
        rows = self.conn.execute("select id, claims from jobs.job where state = 'running'")
        return [(id, claims) for id, claims in rows]

    def renew(self) -> float:
        """All that run."""
        return self.a_job("RenewLeases", renewing(self.held))

    def settle(self, outcome: str, message: str | None = None) -> float:
        """All that run."""
        params = settling(self.held, outcome, error=message is not None)
        if message is not None:
            params["error_messages"] = [message] * self.count
        return self.a_job("SettleJobs", params)


@pytest.fixture(params=[60, KILOBYTE, MEGABYTE], ids=["60-bytes", "1-kB-inline", "1-MB-toasted"])
def steps(quiet: Conn, request: pytest.FixtureRequest) -> Steps:
    """Jobs of three sizes."""
    return Steps(quiet, request.param)


def test_the_payload_is_written_at_the_enqueue_and_at_the_end_only(steps: Steps) -> None:
    size = steps.size
    assert size < steps.enqueue() < 1.1 * size + 600
    for _ in range(3):
        assert steps.claim() < CLAIM
        assert steps.renew() < RENEW
        assert steps.renew() < RENEW
        assert steps.settle("retry", "no luck") < RETRY
    assert steps.claim() < CLAIM
    assert steps.renew() < RENEW
    assert steps.settle("released") < RELEASE
    assert steps.claim() < CLAIM
    assert size < steps.settle("completed") < 1.15 * size + 800


@pytest.mark.parametrize("outcome", ["dead", "retry"])
def test_a_bad_end_writes_it_once_more_too(steps: Steps, outcome: str) -> None:
    steps.enqueue()
    steps.conn.execute("update jobs.job set max_attempts = 1")
    steps.claim()
    assert steps.size < steps.settle(outcome, "no way") < 1.15 * steps.size + 1300


@pytest.mark.parametrize("size", [KILOBYTE, MEGABYTE])
def test_a_rescue_does_not_write_it_and_a_burial_does(quiet: Conn, size: int) -> None:
    steps = Steps(quiet, size)
    steps.enqueue()
    quiet.execute("update jobs.job set max_attempts = 2 where queue = 'q'")
    steps.claim()
    lapse = """
        update jobs.job set lease_expires_at = now(), rescue_at = now() where state = 'running'
    """
    quiet.execute(lapse)
    asked = claiming({"q": steps.count}, rescue=True)
    assert steps.a_job("ClaimJobs", asked) < CLAIM + 600
    quiet.execute(lapse)
    assert size < steps.a_job("ClaimJobs", asked) < 1.15 * size + 1200


@pytest.mark.parametrize("size", [900, 1300, 1700, 1850])
def test_on_the_edge_of_the_page_format_it_is_written_once_in_a_life(
    quiet: Conn, size: int
) -> None:
    """A row that grows over 2 kB by its worker's name or its last error moves its payload out.

    PostgreSQL decides so, at the update that crosses the line, and no later one writes it again.
    """
    steps = Steps(quiet, size)
    message = secrets.token_urlsafe(750)[:1000]

    def lives() -> list[float]:
        steps.enqueue()
        cycles = [steps.claim() + steps.settle("retry", message) for _ in range(4)]
        steps.claim()
        steps.settle("completed")
        return cycles

    large = lives()
    steps.size = 60
    small = lives()
    extra = [one - other for one, other in zip(large, small, strict=True)]
    assert sum(extra) < 1.2 * size + 400, (large, small)
    assert max(extra[1:]) < 300, (large, small)

"""Cancel against the end of a run (O-11): every order by hand, then real sessions at random."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from psycopg import Connection

from tests.sql import tables
from tests.sql.calls import (
    Held,
    Settle,
    claim,
    claim_one,
    dead,
    made,
    renew,
    retry,
    running,
    settle,
)
from tests.sql.operating import cancel, cancel_until

pytestmark = pytest.mark.majors

Conn = Connection[Any]


def steps(held: Held) -> dict[str, Callable[[Conn], Any]]:
    """What may happen to a running job, by name."""

    def lapses(conn: Conn) -> None:
        row = tables.one(conn, "job", held[0])
        if row is not None and row["state"] == "running" and row["claims"] == held[1]:
            tables.lapse(conn, held[0])

    return {
        "cancel": lambda conn: cancel(conn, held[0]),
        "success": lambda conn: settle(conn, held),
        "failure": lambda conn: settle(conn, retry(held)),
        "lapse": lapses,
        "rescue": lambda conn: claim(conn, worker="w2", rescue=True),
    }


ORDERS = list(itertools.permutations(["cancel", "success", "failure", "lapse", "rescue"]))


class TestEveryOrder:
    """O-11."""

    @pytest.mark.parametrize("order", ORDERS, ids=["-".join(order) for order in ORDERS])
    def test_exactly_one_end_and_no_claim_after_a_cancel(
        self, conn: Conn, order: tuple[str, ...]
    ) -> None:
        held = running(conn, max_attempts=5)
        what = steps(held)
        answers: dict[str, Any] = {}
        for step in order:
            claims_before = self.claims(conn, held[0])
            live = tables.one(conn, "job", held[0])
            asked = live is not None and live["cancel_requested_at"] is not None
            answers[step] = what[step](conn)
            if asked or live is None:
                assert self.claims(conn, held[0]) == claims_before, "claimed after a cancel"
        # Whoever holds it now goes on, and its work succeeds.
        row = tables.one(conn, "job", held[0])
        if row is not None and row["state"] == "running":
            settle(conn, (held[0], row["claims"]), worker=row["worker"])
        elif row is not None:
            claimed = claim_one(conn, worker="w3")
            settle(conn, (claimed.id, claimed.claims), worker="w3")
        end = tables.settled(conn, held[0])
        ((verdict, state),) = answers["cancel"]
        landed = [
            answer
            for step in ("success", "failure")
            for answer in answers[step]
            if answer[0] == "landed"
        ]
        assert len(landed) <= 1
        if verdict == "cancelled":
            assert end["state"] == "cancelled"
        elif verdict == "finished":
            assert end["state"] == state
        else:
            assert verdict == "requested"
            assert end["state"] in ("cancelled", "completed")
        ends = {key: n for key, n in tables.counters(conn).items() if key in ENDS}
        assert ends == {end["state"]: 1}
        assert cancel(conn, held[0]) == [("finished", end["state"])]

    def claims(self, conn: Conn, id: UUID) -> int:
        """The newest token."""
        row = tables.one(conn, "job", id) or tables.one(conn, "settled", id)
        assert row is not None
        return int(row["claims"])


ENDS = {"completed", "failed", "dead", "cancelled"}


class TestRandomInterleavings:
    """O-11: real sessions at once, job by job, hundreds of times."""

    @pytest.mark.parametrize("seed", range(2))
    def test_each_ends_once_and_nothing_runs_after_its_cancel(
        self, conn: Conn, connect: Callable[..., Conn], seed: int
    ) -> None:
        count = 500
        ids = [made(conn, max_attempts=3, dead_letter=n % 2 == 0) for n in range(count)]
        told: dict[UUID, tuple[str, str | None]] = {}
        failures: list[BaseException] = []
        done = threading.Event()

        def works(conn: Conn, name: str, chance: random.Random) -> None:
            held: list[Held] = []
            while not done.is_set() or held:
                if not done.is_set():
                    rows = claim(conn, 8, worker=name, rescue=True)
                    held += [(row.id, row.claims) for row in rows if row.verdict == "claimed"]
                if held and chance.random() < 0.5:
                    assert len(renew(conn, held, worker=name)) == len(held)
                if held and chance.random() < 0.2:
                    held.pop()  # forgotten: its lease will lapse
                chance.shuffle(held)
                asked = [chance.choice([Settle, retry, dead, released])(one) for one in held[:5]]
                for one, (verdict, _) in zip(asked, settle(conn, *asked, worker=name), strict=True):
                    if verdict != "again":
                        held.remove(one.held)

        def cancels(conn: Conn, chance: random.Random) -> None:
            for id in chance.sample(ids, count):
                told[id] = cancel_until(conn, id)

        def lapses(conn: Conn) -> None:
            while not done.is_set():
                conn.execute(
                    """
                    update jobs.job as j
                    set lease_expires_at = now() - interval '1 s',
                        rescue_at = now() - interval '1 s'
                    where j.id = any(array(
                        select k.id from jobs.job as k where k.state = 'running'
                        and random() < 0.1 for update skip locked
                    ))
                    """
                )

        def guarded(act: Callable[..., None], *args: Any) -> threading.Thread:
            def run() -> None:
                try:
                    act(*args)
                except BaseException as error:
                    failures.append(error)
                    done.set()

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        workers = [
            guarded(works, connect(), f"w{n}", random.Random(seed * 10 + n)) for n in range(2)
        ]
        lapsing = guarded(lapses, connect())
        cancelling = guarded(cancels, connect(), random.Random(seed))
        cancelling.join()
        done.set()
        for thread in (*workers, lapsing):
            thread.join()
        if failures:
            raise failures[0]
        # What is left has been asked to end. Nobody may claim it.
        conn.execute("update jobs.job set lease_expires_at = now(), rescue_at = now()")
        rows = claim(conn, count, rescue=True, rescue_limit=count)
        assert {row.verdict for row in rows} <= {"cancelled"}
        ends = tables.where(conn, ids)
        assert set(ends) <= ENDS
        assert ends.total() == count
        assert ends["cancelled"] > 0
        counted = {key: n for key, n in tables.counters(conn).items() if key in ENDS}
        assert counted == dict(ends)
        for id, (verdict, state) in told.items():
            end = tables.settled(conn, id)
            if verdict == "requested":
                assert end["state"] in ("cancelled", "completed")
                assert end["cancel_requested_at"] is not None
            else:
                assert end["state"] == state


def released(held: Held) -> Settle:
    """Handed back."""
    return Settle(held, "released")

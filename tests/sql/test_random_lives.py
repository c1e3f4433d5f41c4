"""Random lives of a few jobs against a model of which token may still settle what.

Each token ever given is tried again and again, by its worker: it lands at most once, a repeat is
told so, and one that was taken away is lost and changes nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from psycopg import Connection

from tests.sql import tables
from tests.sql.calls import Held, Settle, claim, made, renew, settle

pytestmark = pytest.mark.majors

Conn = Connection[Any]

OUTCOMES = ("completed", "retry", "dead", "released")


@dataclass
class Life:
    """What must be true of one job."""

    id: UUID
    max_attempts: int
    state: str = "ready"
    attempt: int = 0
    claims: int = 0
    holder: str | None = None
    lapsed: bool = False
    workers: dict[int, str] = field(default_factory=dict)
    landed: set[int] = field(default_factory=set)
    revoked: int = 0

    def verdict(self, token: int, worker: str) -> str:
        """What a settle of this token must answer now."""
        if self.state == "running" and token == self.claims and worker == self.holder:
            return "landed"
        return "repeated" if token in self.landed and token > self.revoked else "lost"

    def settle(self, outcome: str) -> str:
        """Land it: the state it is in then."""
        self.landed.add(self.claims)
        self.holder, self.lapsed = None, False
        if outcome == "released":
            self.attempt -= 1
        if outcome == "completed":
            self.state = "completed"
        elif outcome == "dead" or (outcome == "retry" and self.attempt >= self.max_attempts):
            self.state = "dead"
        else:
            self.state = "ready"
        return self.state

    def claim(self, worker: str) -> None:
        """Take it, or take it away."""
        if self.state == "running":
            self.revoked = self.claims
        self.state, self.holder, self.lapsed = "running", worker, False
        self.claims += 1
        self.attempt += 1
        self.workers[self.claims] = worker

    def bury(self) -> None:
        """End it for want of its worker."""
        self.state, self.revoked, self.holder = "dead", self.claims, None


@pytest.mark.parametrize("seed", range(6))
def test_every_answer_is_the_models(conn: Conn, seed: int) -> None:
    chance = random.Random(seed)
    lives: dict[UUID, Life] = {}
    ended: list[Life] = []
    totals = dict.fromkeys(("completed", "retried", "dead", "rescued"), 0)

    def makes() -> None:
        over = [life for life in lives.values() if life.state in ("completed", "dead")]
        # Some are kept, to be settled again.
        for life in chance.sample(over, len(over) // 2):
            ended.append(lives.pop(life.id))  # noqa: PERF401
        while len(lives) < 6:
            limit = chance.choice([1, 2, 3, 8])
            id = made(conn, max_attempts=limit)
            lives[id] = Life(id, limit)

    def claims() -> None:
        worker, rescue = chance.choice(["w1", "w2"]), chance.random() < 0.7
        rows = claim(conn, chance.randint(1, 4), worker=worker, rescue=rescue)
        for row in rows:
            life = lives[row.id]
            assert life.state == "ready" or (rescue and life.lapsed)
            if row.verdict == "buried":
                assert (row.claims, life.attempt) == (life.claims, life.max_attempts)
                totals["dead"] += 1
                life.bury()
            else:
                totals["rescued"] += life.state == "running"
                life.claim(worker)
                assert (row.claims, row.attempt) == (life.claims, life.attempt)

    def lapses() -> None:
        for life in lives.values():
            if life.state == "running" and chance.random() < 0.5:
                tables.lapse(conn, life.id)
                life.lapsed = True

    def renews() -> None:
        life = chance.choice(list(lives.values()))
        token = chance.randint(0, life.claims + 1)
        worker = life.workers.get(token, "w1")
        mine = life.state == "running" and token == life.claims
        assert renew(conn, [(life.id, token)], worker=worker) == ["renewed" if mine else "lost"]
        if mine:
            life.lapsed = False

    def settles() -> None:
        worker = chance.choice(["w1", "w2"])
        asked: dict[Held, Settle] = {}
        for life in chance.sample(list(lives.values()), chance.randint(1, 4)):
            token = chance.choice([life.claims, chance.randint(0, life.claims + 1)])
            asked[life.id, token] = Settle((life.id, token), chance.choice(OUTCOMES))
        wanted = []
        for (id, token), one in asked.items():
            life = lives[id]
            verdict, state = life.verdict(token, worker), None
            if verdict == "landed":
                state = life.settle(one.outcome)
                outcome = {"ready": "retried"}.get(state, state)
                if one.outcome != "released":
                    totals[outcome] += 1
            wanted.append((verdict, state))
        assert settle(conn, *asked.values(), worker=worker) == wanted

    for _ in range(400):
        makes()
        chance.choice([claims, claims, settles, settles, settles, lapses, renews])()

    assert tables.counters(conn) == {key: value for key, value in totals.items() if value}
    for life in [*lives.values(), *ended]:
        row = tables.one(conn, "job", life.id) or tables.settled(conn, life.id)
        assert (row["state"], row["claims"], row["attempt"], row["revoked"]) == (
            life.state,
            life.claims,
            life.attempt,
            life.revoked,
        )

"""``jobs relay`` and ``jobs outbox``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cli.conftest import Said
from tests.runtime.relaying import noted, outbox, queued, stage
from tests.runtime.working import execute
from tests.support.server import Clones

Command = Callable[..., Said]


@pytest.fixture
def queue_database(clones: Clones) -> Iterator[str]:
    with clones.clone() as dsn:
        yield dsn


def poison(database: str, n: int) -> None:
    execute(
        database,
        "alter table jobs.job add constraint poison check"
        f" (input::jsonb ->> 'n' <> '{n}') not valid",
    )


class TestRelay:
    def test_to_the_queue_beside_the_outbox(self, command: Command, database: str) -> None:
        ids = stage(database, 1, 2)
        said = command("relay", "--until-idle", "--name", "me")
        assert said.status == 0
        assert "relay me serves, to the queue beside the outbox" in said.err
        assert "relay me has stopped: 2 published, 0 refusals, 0 set aside" in said.err
        assert queued(database) == ids

    def test_to_another_database(
        self, command: Command, database: str, queue_database: str
    ) -> None:
        ids = stage(database, 1, 2)
        assert command("relay", "--to", queue_database, "--until-idle").status == 0
        assert queued(queue_database) == ids
        assert queued(database) == []

    def test_to_a_sink_of_the_application(
        self, command: Command, database: str, tmp_path: Any
    ) -> None:
        (tmp_path / "sinks.py").write_text(
            "from jobs.relay import Published\n"
            "class Printing:\n"
            "    async def open(self): pass\n"
            "    async def close(self): pass\n"
            "    async def publish(self, messages):\n"
            "        print(*[message.id for message in messages], flush=True)\n"
            "        return Published(len(messages))\n"
            "made = Printing()\n"
            "def make(): return Printing()\n"
        )
        for target in ("sinks:made", "sinks:make", "sinks:Printing"):
            ids = stage(database, 1, 2)
            said = command("relay", "--sink", target, "--until-idle")
            assert said.lines == [" ".join(str(id) for id in ids)]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--batch", "0"], "batch is 0"),
            (["--lease", "0"], "lease is 0:00:00"),
            (["--keep-days", "nan"], "--keep-days"),
            (["--keep-days", "1e9"], "--keep-days"),
            (["--to", "mysql=x="], "connection string"),
            (["--sink", "nowhere"], "module:attribute"),
            (["--sink", "nowhere:x"], "no module 'nowhere'"),
            (["--sink", "shop:nothing"], "has no 'nothing'"),
            (["--sink", "shop:registry"], "no sink"),
            (["--park-after", "-1"], "park_after is -1"),
        ],
    )
    def test_misuse(self, command: Command, arguments: list[str], message: str) -> None:
        said = command("relay", "--until-idle", *arguments)
        assert said.status == 2
        assert message in said.err

    def test_an_outbox_that_cannot_be_reached(self, command: Command) -> None:
        said = command("relay", "--dsn", "host=/nowhere connect_timeout=1")
        assert said.status == 1
        assert "JOB_DATABASE_UNREACHABLE" in said.err


class TestOutbox:
    def test_what_is_stuck_and_having_it_tried_again(self, command: Command, database: str) -> None:
        poison(database, 2)
        ids = stage(database, *range(4))
        command("relay", "--until-idle")
        hold = "update jobs.outbox set retry_at = now() + interval '1 hour' where id = %s"
        execute(database, hold, ids[2])
        stats = command("outbox", "stats", "--json").document
        assert (stats["waiting"], stats["parked"]) == (2, 0)
        assert stats["head_id"] == str(ids[2])
        assert "poison" in stats["head_error"]
        assert stats["head_retry_at"] is not None
        assert stats["lease_left"] is None
        assert "poison" in command("outbox", "stats").out

        listed = command("outbox", "list", "--json").document
        assert [(row["id"], row["state"]) for row in listed["rows"]] == [
            (str(ids[2]), "held back"),
            (str(ids[3]), "waiting"),
        ]
        assert listed["next_cursor"] is None
        table = command("outbox", "list").lines
        assert table[0].split()[:2] == ["ID", "STATE"]
        assert "held back" in table[1]
        assert "poison" in table[1]

        execute(database, "update jobs.outbox set refusals = 9 where last_error is not null")
        assert command("outbox", "retry", str(ids[2]), "--json").document == {
            "rows": [{"id": str(ids[2]), "state": "waiting"}]
        }
        assert [row.refusals for row in outbox(database)] == [0, 0, 0, 0]
        command("relay", "--until-idle", "--park-after", "1")
        parked = command("outbox", "list", "--parked", "--json").document["rows"]
        assert [(row["id"], row["state"]) for row in parked] == [(str(ids[2]), "parked")]
        assert command("outbox", "list", "--waiting").lines == ["nothing is staged"]
        assert queued(database) == [ids[0], ids[1], ids[3]]

        execute(database, "alter table jobs.job drop constraint poison")
        assert command("outbox", "retry", str(ids[2])).status == 0
        command("relay", "--until-idle")
        assert set(queued(database)) == set(ids)
        again = command("outbox", "retry", str(ids[2]), str(noted_id()))
        assert again.status == 1
        assert [line.split()[1] for line in again.lines[1:]] == ["published", "unknown"]

    def test_pages(self, command: Command, database: str) -> None:
        ids = [str(id) for id in stage(database, *range(5))]
        first = command("outbox", "list", "--limit", "3", "--json").document
        assert [row["id"] for row in first["rows"]] == ids[:3]
        rest = command("outbox", "list", "--cursor", first["next_cursor"], "--json").document
        assert [row["id"] for row in rest["rows"]] == ids[3:]
        assert rest["next_cursor"] is None
        assert "more: --cursor" in command("outbox", "list", "--limit", "3").out
        for bad in (["--cursor", "x"], ["--cursor", f"2026-01-01/{ids[0]}"], ["--limit", "0"]):
            assert command("outbox", "list", *bad).status == 2

    def test_one_row(self, command: Command, database: str) -> None:
        [id] = stage(database, 7)
        shown = command("outbox", "show", str(id), "--json").document
        assert (shown["state"], shown["input"], shown["name"]) == ("waiting", {"n": 7}, "noted")
        command("relay", "--until-idle", "--name", "me")
        shown = command("outbox", "show", str(id), "--json").document
        assert (shown["state"], shown["outcome"], shown["published_by"]) == (
            "published",
            "created",
            "me",
        )
        assert "published" in command("outbox", "show", str(id)).out
        assert command("outbox", "show", str(noted_id())).status == 1
        assert command("outbox", "show", "x").status == 2

    def test_discarding_takes_only_what_was_set_aside(
        self, command: Command, database: str
    ) -> None:
        poison(database, 1)
        ids = stage(database, 1, 2)
        command("relay", "--until-idle", "--park-after", "1")
        stage(database, 3)
        waiting = str(outbox(database)[-1].id)
        said = command("outbox", "discard", str(ids[0]), waiting, "--json")
        assert said.document == {"discarded": [str(ids[0])], "kept": [waiting]}
        assert said.status == 1
        assert command("outbox", "discard", waiting).status == 1
        assert [str(row.id) for row in outbox(database)] == [str(ids[1]), waiting]

    def test_pruning(self, command: Command, database: str) -> None:
        stage(database, 1, 2, 3)
        command("relay", "--until-idle", "--keep-days", "-1")
        assert "0 published rows removed" in command("outbox", "prune").out
        pruned = command("outbox", "prune", "--keep-days", "0", "--limit", "2", "--json")
        assert pruned.document == {"removed": 2, "maybe_more": True}
        assert command("outbox", "prune", "--keep-days", "0").lines == ["1 published rows removed"]
        assert command("outbox", "prune", "--keep-days", "-1").status == 2
        assert command("outbox", "prune", "--limit", "0").status == 2


def noted_id() -> Any:
    """An id that no row has."""
    import jobs

    assert noted.name
    return jobs.uuid7()

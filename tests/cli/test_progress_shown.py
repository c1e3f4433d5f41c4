"""`jobs list` and `jobs show` print how far a run says it is, and what a finished one returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psycopg import Connection

from tests.cli.conftest import Said
from tests.sql.calls import Settle, running, settle
from tests.sql.test_progress import report

Command = Callable[..., Said]


def test_progress_is_in_the_list_and_the_result_on_the_page_of_the_job(
    command: Command, conn: Connection[Any]
) -> None:
    silent, held = running(conn), running(conn)
    report(conn, [held], 0.4, "two of five")
    heading, *lines = command("list", "--oldest-first").lines
    column = heading.index("PROGRESS")
    shown = {line.split()[0]: line[column:].split()[0] for line in lines}
    assert shown == {str(silent[0]): "-", str(held[0]): "40%"}
    settle(conn, Settle(held, result='{"pages": 5}'))
    page = command("show", str(held[0])).out
    assert "two of five" in page
    assert '{"pages": 5}' in page
    record = command("show", str(held[0]), "--json").document
    assert (record["progress"], record["progress_message"]) == (0.4, "two of five")
    assert record["result"] == '{"pages": 5}'
    assert "result" not in command("list", "--json").document["jobs"][0]

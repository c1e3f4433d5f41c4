"""docs/schedules.md shows commands that are understood, output that comes, code that runs."""

from __future__ import annotations

import re

import pytest

from jobs.cli import main
from tests.cli.test_operating_page import parse
from tests.support.server import ROOT
from tests.timetable.asking import following

PAGE = (ROOT / "docs" / "schedules.md").read_text()
COMMANDS = re.findall(
    r"^jobs (.+)$", "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.S)), re.MULTILINE
)
ROWS = re.findall(r"^\| `([^`]+)` \| (\d\d-\d\d \d\d:\d\d[-+].+) \|$", PAGE, re.MULTILINE)


def test_there_are_some() -> None:
    verbs = {line.split()[1] for line in COMMANDS if line.startswith("tasks")}
    assert verbs >= {"list", "next", "create", "change", "pause", "resume", "fire", "remove"}
    assert len(ROWS) == 4


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page_is_understood(line: str) -> None:
    assert callable(parse(line).run)


def test_the_preview_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    command, output = re.findall(
        r"```sh\njobs (tasks next --cron.*)\n```\n\n```\n(.*?)```", PAGE, re.S
    )[0]
    args = parse(command)
    assert args.run(args) == 0
    assert capsys.readouterr().out == output
    assert main(["tasks", "next", "--cron", "0 0 30 2 *", "--tz", "UTC"]) == 2


@pytest.mark.parametrize(("cron", "said"), ROWS, ids=[row[0] for row in ROWS])
def test_the_instants_of_the_table(cron: str, said: str) -> None:
    day = said[:5]
    times = [
        one if re.match(r"\d\d-\d\d ", one) else f"{day} {one}"
        for one in re.findall(r"(?:\d\d-\d\d )?\d\d:\d\d[-+]\d\d:\d\d", said)
    ]
    wanted = [f"2026-{one[:11]}{one[11:].replace(':', '', 1)}" for one in times]
    start = {"11-01": "2026-11-01T04:30Z", "03-08": "2026-03-08T05:00Z"}[day]
    found = following(cron, "America/New_York", start, len(wanted) + 1)
    assert found[: len(wanted)] == wanted
    if "only" in said:
        assert not found[1].startswith(f"2026-{day}")

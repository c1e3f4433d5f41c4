"""docs/operating.md shows commands that the command line takes, and columns that it prints."""

from __future__ import annotations

import argparse
import re
import shlex
from typing import Any

import pytest

from jobs.cli.app import _ADD_PARSERS
from jobs.cli.looking import _COLUMNS
from tests.support.server import ROOT

PAGE = (ROOT / "docs" / "operating.md").read_text()
COMMANDS = re.findall(
    r"^jobs (.+)$", "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.S)), re.MULTILINE
)


def parse(line: str) -> Any:
    """Read a command line as the shell and then the command would."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    sub = parser.add_subparsers(required=True)
    for add_parser in _ADD_PARSERS:
        add_parser(sub)
    words = shlex.split(line, comments=True)
    return parser.parse_args(words[: words.index("<")] if "<" in words else words)


def test_there_are_some() -> None:
    verbs = {line.split()[0] for line in COMMANDS}
    assert verbs >= {"list", "show", "stats", "cancel", "requeue", "pause", "resume", "enqueue"}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page_is_understood(line: str) -> None:
    assert callable(parse(line).run)


def test_the_listing_has_these_columns() -> None:
    (heading,) = re.findall(r"^ID +STATE +QUEUE.*$", PAGE, re.MULTILINE)
    assert re.split(r" {2,}", heading) == list(_COLUMNS.values())

"""`jobs run`: what its services are made with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from jobs.cli.app import main
from jobs.worker import Worker


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The services that the command makes; none is started."""
    found: list[Any] = []

    async def keep(services: Sequence[Any]) -> None:
        found.extend(services)

    def run(service: Any, *_: object) -> int:
        asyncio.run(service)
        return 0

    monkeypatch.setattr("jobs.cli.run.run_together", keep)
    monkeypatch.setattr("jobs.cli.run.serve", run)
    return found


@pytest.mark.parametrize(("options", "own"), [((), True), (("--name", "web-0"), False)])
def test_a_name_that_nobody_gave_is_the_workers_own(
    made: list[Any], options: tuple[str, ...], own: bool
) -> None:
    """So that it asks for the jobs of a claim whose answer was lost, as `jobs worker` does."""
    argv = ["run", "examples.tenants.work", "--dsn", "host=127.0.0.1 port=1", *options]
    assert main(argv) == 0
    (worker,) = [one for one in made if isinstance(one, Worker)]
    assert worker.config.own_name is own
    assert [one.noun for one in made] == ["scheduler", "relay", "worker"]
    assert len({one.name for one in made}) == 1, "one label for the process"

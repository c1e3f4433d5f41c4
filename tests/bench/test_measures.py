"""Each measurement of our own works on a tiny scale, and a report is made of it. No peers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from bench import report
from bench.__main__ import _arguments, measure
from bench.arena import Arena, arena
from bench.bars import BARS
from bench.environments import UnavailableError
from bench.figures import Figure
from bench.measures import MEASURES
from bench.run import OURS, Run
from bench.sizes import Sizes

# They start a durable server and many processes, and are about time.
pytestmark = [pytest.mark.serial, pytest.mark.timeout(120)]

TINY = Sizes(
    rounds=1,
    share=0.005,
    cap=20.0,
    batches=(20,),
    near=5,
    far=2,
    idle=1.0,
    rows=500,
    history_drain=200,
    history_rounds=2,
    snapshot=500,
    blocked=300,
    waiting=10,
    settle_seconds=1.0,
)
# What each measurement says of us at least; a rescue lasts as long as a lease.
EXPECTED = {
    "enqueue": {"one by one", "bulk", "copy"},
    "drain": {
        "defaults",
        "tuned",
        "tuned, two processes",
        "100 slots",
        "waiting 1 ms",
        "waiting 1 ms, two processes",
        "waiting 1 ms at the defaults",
        "waiting 1 ms at the defaults, two processes",
    },
    "latency": {"25 ms apart, p50", "25 ms apart, p99", "1 s apart, p50", "1 s apart, p99"},
    "idle": {"statements"},
    "backlog": {"fresh", "beside them", "claim, fresh", "claim, beside them"},
    "snapshot": {"fresh", "held", "claim at the end, fresh", "claim at the end, held"},
    "blocked": {"fresh", "beside them", "claim, fresh", "claim, beside them"},
    "memory": {"waiting"},
    "startup": {"import", "first job"},
}


@pytest.fixture(scope="module")
def place() -> Iterator[Arena]:
    """A server for all measurements of this module, in memory: what the disk does is no matter."""
    with arena(durable=False) as made:
        yield made


@pytest.fixture(scope="module")
def run(place: Arena, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """We, alone."""
    made = Run(place, TINY)
    made.enter([OURS], tmp_path_factory.mktemp("environments"))
    assert made.absent == {}
    return made


@pytest.fixture(scope="module")
def taken(run: Run) -> Callable[[str], list[Figure]]:
    """Takes a measurement once and returns its figures."""

    @cache
    def take(name: str) -> list[Figure]:
        run.figures.clear()
        MEASURES[name](run)
        return list(run.figures)

    return take


@pytest.mark.parametrize("name", EXPECTED)
def test_a_measurement(taken: Callable[[str], list[Figure]], name: str) -> None:
    figures = taken(name)
    assert [each for each in figures if each.value is None] == []
    assert {each.name for each in figures if each.subject == OURS} >= EXPECTED[name]
    # A worker that is woken may well send nothing in the short time it is watched here.
    least = 0.0 if name == "idle" else 1e-9
    assert all(each.measure == name and (each.value or 0) >= least for each in figures)
    assert all(each.detail["load"]["busy"] >= 0 for each in figures)


def test_every_measurement_is_tried_here_but_the_one_that_lasts_a_lease() -> None:
    assert set(MEASURES) - set(EXPECTED) == {"rescue"}


def test_a_drain_counts_what_was_sent(taken: Callable[[str], list[Figure]]) -> None:
    (tuned,) = [f for f in taken("drain") if (f.name, f.subject) == ("tuned", OURS)]
    assert tuned.detail["finished"] == TINY.scaled(50_000)
    assert 0 < tuned.detail["statements_a_job"] < 1
    assert tuned.detail["buffers_a_job"] > 1
    assert tuned.detail["wal_bytes_a_job"] > 100


def test_a_worker_that_fails_is_a_reason_and_no_number(run: Run) -> None:
    with run.ours.turn() as turn:
        turn.work("no such profile")
        with pytest.raises(UnavailableError, match="the worker ended: KeyError"):
            turn.until(1, 20)


def test_the_command_writes_everything(tmp_path: Path) -> None:
    # No plot: that needs a package which is not ours.
    args = _arguments(["--quick", "--only", "startup", "--peers", "none", "--no-plot"])
    parts = measure(args.only, args.peers, TINY, tmp_path, tmp_path / "environments")
    (part,) = parts
    assert json.loads((tmp_path / "startup.json").read_text()) == part
    assert part["machine"]["settings"]["fsync"] == "on"
    assert part["machine"]["settings"]["synchronous_commit"] == "on"
    text = (tmp_path / "report.md").read_text()
    assert "| first job | sql-jobs | s |" in text
    assert all(bar.text in text for bar in BARS)


def test_a_report_keeps_the_files_of_other_runs(tmp_path: Path) -> None:
    context = {
        "machine": {"at": "then"},
        "load": {"load_average_before": 0, "load_average_after": 0},
        "seconds": 1.0,
        "versions": {},
        "absent": {},
    }
    for name in ("drain", "idle"):
        report.save(tmp_path, name, [Figure(name, "x", OURS, "u", 1.0)], context)
    assert [part["measure"] for part in report.load(tmp_path, MEASURES)] == ["drain", "idle"]


def test_an_interrupted_measurement_keeps_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(run: Run) -> None:
        run.add(Figure("idle", "statements", OURS, "a minute", 30.0))
        raise KeyboardInterrupt

    monkeypatch.setitem(MEASURES, "idle", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measure(["idle"], [], TINY, tmp_path, tmp_path / "environments")
    (part,) = report.load(tmp_path, ["idle"])
    assert [each["value"] for each in part["figures"]] == [30.0]

"""Medians, ratios, bars and the report, on figures made up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import report
from bench.bars import BARS, Bar
from bench.environments import UnavailableError, environment, interpreter
from bench.figures import Figure, Summary, by_round, ratios
from bench.layers import by_layer
from bench.measures.latency import percentile
from bench.measures.snapshot import at_the_end, by_fifth, slopes
from bench.pgbench import cycle
from bench.run import OURS, PEERS
from bench.subjects.drive import load


def drained(subject: str, *values: float | None, name: str = "tuned") -> list[Figure]:
    """Figures of a drain, a round each."""
    return [
        Figure("drain", name, subject, "jobs/s", value, number, "" if value else "it fell over")
        for number, value in enumerate(values)
    ]


def bar(text: str) -> Bar:
    """The bar of that text."""
    (found,) = [each for each in BARS if each.text == text]
    return found


def test_a_summary_is_the_median_and_the_ends() -> None:
    assert Summary.of([3, 1, 2]) == Summary(2, 1, 3, 3)
    assert Summary.of([]) is None


def test_ratios_are_taken_round_by_round() -> None:
    # The machine was half as fast in the second round, for both.
    figures = [*drained(OURS, 100, 50, 90), *drained("pgqueuer", 50, 25, None)]
    found = ratios(by_round(figures, "tuned", OURS), by_round(figures, "tuned", "pgqueuer"))
    assert found == Summary(2, 2, 2, 2)


def test_the_best_peer_is_the_best_of_each_round_and_no_limit() -> None:
    figures = [
        *drained(OURS, 100, 100),
        *drained("pgqueuer", 50, 10),
        *drained("oban", 20, 40),
        *drained("pgbench batch 500", 200, 200),
    ]
    assert bar("drain tuned / best peer").found(figures) == Summary(2.25, 2, 2.5, 2)
    assert bar("drain with 500 slots / pgbench at batch 500").found(figures) == Summary(
        0.5, 0.5, 0.5, 2
    )


@pytest.mark.parametrize(
    ("more", "value", "reached"), [(True, 1, True), (True, 0.9, False), (False, 1.1, False)]
)
def test_a_bar_knows_its_direction(more: bool, value: float, reached: bool) -> None:
    assert Bar("x", 1, more, lambda _: None).reached(Summary(value, value, value, 1)) == reached


def part(figures: list[Figure], absent: dict[str, str]) -> dict[str, Any]:
    """A file of results."""
    return {
        "measure": "drain",
        "machine": {
            "cores": 2,
            "processor": "p",
            "memory_gib": 1,
            "system": "s",
            "python": "3",
            "psycopg": "3",
            "settings": {"fsync": "on"},
            "at": "now",
        },
        "load": {"load_average_before": 0, "load_average_after": 0},
        "seconds": 1.0,
        "versions": {},
        "absent": absent,
        "figures": [each.as_json() for each in figures],
    }


def test_who_fails_and_who_is_absent_stays_in_the_report() -> None:
    figures = [*drained(OURS, 100), *drained("chancy", None)]
    text = report.markdown([part(figures, {"oban": "needs Python 3.99"})])
    assert "| tuned | chancy | | it fell over | 0 | | |" in text
    assert "- oban took no part: needs Python 3.99" in text
    assert "| drain tuned / best peer | ≥ 2 | not measured | |" in text


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(n) for n in range(1, 201)]
    assert (percentile(values, 50), percentile(values, 99)) == (100, 198)
    assert percentile([7.0], 99) == 7


def test_rates_over_time() -> None:
    assert slopes([(0, 0.0), (10, 100.0), (10, 120.0), (30, 300.0)]) == [10.0, 9.0]
    assert at_the_end([(0, 0.0), (70, 700.0), (80, 800.0), (95, 900.0), (100, 1000.0)]) == 10.0
    assert at_the_end([(0, 0.0), (100, 500.0)]) == 5.0
    assert by_fifth([n / 10 for n in range(51)]) == [10.0] * 5


def test_the_limit_is_our_own_statements() -> None:
    script = cycle(100)
    assert "update jobs.job" in script
    assert "insert into jobs.settled" in script
    assert "\\gset" in script
    assert "$" not in script


def test_every_peer_is_described() -> None:
    for name in (OURS, *PEERS):
        subject = load(name)
        assert subject.name == name
        assert set(subject.settings) == {"defaults", "tuned", "wide"}
        assert {"defaults", "tuned"} <= set(subject.backlog)
        # Exact versions, or nobody could repeat it.
        assert all("==" in each for each in subject.requirements or ())


class TestEnvironments:
    """Nothing is fetched here: what pip says to a package that is nowhere is a reason too."""

    def test_a_python_that_nobody_has_is_a_reason(self) -> None:
        with pytest.raises(UnavailableError, match=r"needs Python 3\.99"):
            interpreter((3, 99))
        assert interpreter((3, 11)) == sys.executable

    def test_it_is_made_once_and_again_when_the_requirements_change(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commands: list[list[str]] = []

        def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
            commands.append(command)
            (tmp_path / "x").mkdir(exist_ok=True)
            return subprocess.CompletedProcess(command, 0, "", "")

        monkeypatch.setattr(subprocess, "run", run)
        for _ in range(2):
            python = environment(tmp_path, "x", ("a==1",))
            assert python == str(tmp_path / "x" / "bin" / "python")
            assert [command[2] for command in commands] == ["venv", "pip"]
        environment(tmp_path, "x", ("a==2",))
        assert commands[-1][-1] == "a==2"

    def test_what_pip_says_is_the_reason(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said = "WARNING: noise\nERROR: No matching distribution found for a==1\nnote: more noise\n"
        failed = subprocess.CompletedProcess([], 1, "", said)
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
        with pytest.raises(UnavailableError, match="No matching distribution found for a==1"):
            environment(tmp_path, "x", ("a==1",))
        assert not (tmp_path / "x" / "installed").exists()


def test_a_sample_is_booked_to_the_innermost_layer_that_is_known() -> None:
    loop = "run (runners.py:1);_run_once (asyncio/base_events.py:2)"
    samples = [
        f"{loop} 5",
        f"{loop};begin (jobs/worker/crew.py:3);create_task (asyncio/base_events.py:4) 3",
        f"{loop};settle_jobs_async (jobs_sql/settle.py:1);uuid (jobs_sql/_encode.py:2) 2",
        "",
    ]
    assert by_layer(samples) == {
        "event loop: callbacks, steps of tasks": 5,
        "runners: job after job": 3,
        "arguments as text": 2,
    }

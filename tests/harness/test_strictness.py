from __future__ import annotations

import subprocess

import pytest

from tests.support import inner, strictness
from tests.support.server import ROOT
from tests.support.strictness import VARIABLE


def run(suite: str, *arguments: str, **env: str) -> tuple[int, str]:
    done = subprocess.run(
        inner.command(inner.INNER / suite, *arguments),
        cwd=ROOT,
        env=inner.environment(**env),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_elsewhere_a_skip_is_a_skip() -> None:
    status, output = run("suite_that_skips.py")
    assert status == 0, output
    assert "1 passed, 2 skipped, 1 xfailed" in output


@pytest.mark.parametrize("arguments", [(), ("-n", "1")])
def test_in_ci_a_skip_fails(arguments: tuple[str, ...]) -> None:
    status, output = run("suite_that_skips.py", *arguments, **{VARIABLE: "1"})
    assert status == 1, output
    assert "no such tool here" in output
    assert "found out late" in output
    assert "1 passed" in output
    assert "1 xfailed" in output


def test_in_ci_a_module_that_skips_itself_fails() -> None:
    status, output = run("suite_skipped_whole.py", **{VARIABLE: "1"})
    assert status not in (0, 5), output
    assert "no_such_module_anywhere" in output


@pytest.mark.parametrize(("reason", "outcome"), [("no tc here", "skipped"), ("other", "failed")])
def test_only_listed_reasons_are_allowed(
    monkeypatch: pytest.MonkeyPatch, reason: str, outcome: str
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    monkeypatch.setitem(strictness.ALLOWED, r"^Skipped: no tc\b", "tc needs a kernel module")
    report = pytest.TestReport(
        "x.py::test",
        ("x.py", 1, "test"),
        {},
        "skipped",
        ("x.py", 1, f"Skipped: {reason}"),
        "call",
    )
    strictness.refuse_skip(report)
    assert report.outcome == outcome

"""In continuous integration a skipped test is a failed one, unless its reason is listed here."""

from __future__ import annotations

import os
import re

import pytest

VARIABLE = "SQL_JOBS_CI"

# Pattern of the reason given at the skip -> why the run may go on without that test.
ALLOWED: dict[str, str] = {}


def enforced() -> bool:
    """Whether this run must not skip anything."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a report of a skip into one of a failure, where skips are refused."""
    if not enforced() or not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if any(re.search(pattern, reason) for pattern in ALLOWED):
        return
    report.outcome = "failed"
    report.longrepr = f"{VARIABLE} is set and {report.nodeid} was skipped: {reason}"

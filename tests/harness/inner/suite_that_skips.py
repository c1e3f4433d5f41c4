"""Run by test_strictness.py in a process of its own; never collected by itself."""

from __future__ import annotations

import pytest


def test_runs() -> None:
    assert True


@pytest.mark.skipif(True, reason="no such tool here")
def test_marked() -> None:
    raise AssertionError("never runs")


def test_in_the_middle() -> None:
    pytest.skip("found out late")


@pytest.mark.xfail(reason="known", strict=True)
def test_expected_to_fail() -> None:
    raise AssertionError("as expected")

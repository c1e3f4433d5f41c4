"""Retry curves: finite, never negative, at most the ceiling; junk is answered by the default."""

from __future__ import annotations

import logging
import math
import random
from datetime import timedelta
from typing import Any

import pytest

from jobs.errors import DeclarationError
from jobs.retry import LONGEST, MOST_ATTEMPTS, Retry

SECOND = timedelta(seconds=1)
ATTEMPTS = [0, 1, 30, 31, 62, 63, 64, 1023, 1024, 1025, 10**6, 2**31 - 1]


def test_defaults_are_the_documented_ones() -> None:
    assert Retry() == Retry(
        attempts=3,
        backoff="exponential",
        delay=SECOND,
        max_delay=timedelta(hours=1),
        jitter=True,
        dead_letter=True,
    )


@pytest.mark.parametrize("backoff", ["exponential", "linear", "fixed"])
@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_o20_every_attempt_has_a_bounded_delay(backoff: Any, attempt: int) -> None:
    for delay, ceiling in [
        (SECOND, timedelta(hours=1)),
        (timedelta(), timedelta()),
        (timedelta(microseconds=1), LONGEST),
        (LONGEST, LONGEST),
    ]:
        for jitter in (True, False):
            retry = Retry(backoff=backoff, delay=delay, max_delay=ceiling, jitter=jitter)
            assert timedelta() <= retry.delay_for(attempt) <= ceiling


def test_curves() -> None:
    def delays(backoff: Any) -> list[float]:
        retry = Retry(attempts=9, backoff=backoff, delay=3 * SECOND, max_delay=20 * SECOND)
        return [delay.total_seconds() for delay in retry.schedule()]

    assert delays("exponential") == [3, 6, 12, 20, 20, 20, 20, 20]
    assert delays("linear") == [3, 6, 9, 12, 15, 18, 20, 20]
    assert delays("fixed") == [3] * 8
    assert delays(lambda attempt: attempt / 2) == [0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4]


def test_schedule_has_one_delay_less_than_attempts_and_is_bounded() -> None:
    assert Retry(attempts=1).schedule() == []
    assert len(Retry(attempts=4).schedule()) == 3
    assert len(Retry(attempts=MOST_ATTEMPTS).schedule()) == 100
    assert len(Retry(attempts=MOST_ATTEMPTS).schedule(7)) == 7


def test_o20_the_first_retry_waits_the_first_delay() -> None:
    retry = Retry(jitter=False, delay=5 * SECOND)
    assert retry.delay_for(0) == retry.delay_for(1) == retry.delay_for(-3) == 5 * SECOND


def test_jitter_keeps_half_and_spreads_the_other_half() -> None:
    retry = Retry(backoff="fixed", delay=10 * SECOND)
    drawn = [retry.delay_for(1, random.Random(seed)) for seed in range(400)]
    assert min(drawn) >= 5 * SECOND
    assert max(drawn) <= 10 * SECOND
    assert min(drawn) < 5.5 * SECOND
    assert max(drawn) > 9.5 * SECOND
    assert retry.delay_for(1, random.Random(1)) == drawn[1]


def test_o20_final_is_the_last_attempt_and_any_beyond() -> None:
    assert [Retry(attempts=3).final(n) for n in (0, 1, 2, 3, 4, 2**31)] == [
        False,
        False,
        False,
        True,
        True,
        True,
    ]


def raising(attempt: int) -> float:
    raise RuntimeError(f"no delay for {attempt}")


JUNK: list[Any] = [
    raising,
    lambda _: -1,
    lambda _: timedelta(seconds=-1),
    lambda _: math.nan,
    lambda _: math.inf,
    lambda _: -math.inf,
    lambda _: "5",
    lambda _: None,
    lambda _: True,
    lambda _: 3j,
    lambda: 5,
]


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_o20_a_backoff_function_that_fails_falls_back_to_the_default_curve(
    attempt: int, caplog: pytest.LogCaptureFixture
) -> None:
    default = Retry(jitter=False)
    for backoff in JUNK:
        caplog.clear()
        retry = Retry(backoff=backoff, jitter=False)
        assert retry.delay_for(attempt) == default.delay_for(attempt)
        (record,) = caplog.records
        assert (record.name, record.levelno) == ("jobs", logging.ERROR)
        assert getattr(backoff, "__qualname__", "?") in record.getMessage()


@pytest.mark.parametrize(
    ("answer", "delay"),
    [
        (0, timedelta()),
        (2, 2 * SECOND),
        (0.25, SECOND / 4),
        (timedelta(minutes=1), timedelta(minutes=1)),
        (timedelta(days=30), timedelta(hours=1)),
        (10**400, timedelta(hours=1)),
        (1e300, timedelta(hours=1)),
    ],
)
def test_a_backoff_function_is_taken_at_its_word_up_to_the_ceiling(
    answer: Any, delay: timedelta, caplog: pytest.LogCaptureFixture
) -> None:
    assert Retry(backoff=lambda _: answer).delay_for(1) == delay
    assert not caplog.records


class Asynchronous:
    async def __call__(self, attempt: int) -> float:
        return attempt

    def __repr__(self) -> str:
        return "Asynchronous()"


async def asynchronous(attempt: int) -> float:
    return attempt


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attempts", 0),
        ("attempts", -1),
        ("attempts", 2**31),
        ("attempts", 1.0),
        ("attempts", math.inf),
        ("attempts", True),
        ("attempts", "3"),
        ("attempts", None),
        ("backoff", "quadratic"),
        ("backoff", None),
        ("backoff", asynchronous),
        ("backoff", Asynchronous()),
        ("delay", 1),
        ("delay", timedelta(microseconds=-1)),
        ("delay", timedelta(hours=2)),
        ("delay", math.nan),
        ("max_delay", 3600),
        ("max_delay", timedelta(seconds=-1)),
        ("max_delay", LONGEST + SECOND),
        ("max_delay", timedelta.max),
        ("jitter", 1),
        ("dead_letter", "no"),
    ],
)
def test_bad_settings_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(DeclarationError, match=f"retry: {name} must be"):
        Retry(**{name: value})  # type: ignore[arg-type]


def test_settings_are_fixed_once_made() -> None:
    with pytest.raises(AttributeError):
        Retry().attempts = 5  # type: ignore[misc]


def test_description_is_plain() -> None:
    assert Retry().describe() == {
        "attempts": 3,
        "backoff": "exponential",
        "delay": 1.0,
        "max_delay": 3600.0,
        "jitter": True,
        "dead_letter": True,
    }
    assert Retry(backoff=raising).describe()["backoff"] == "raising"

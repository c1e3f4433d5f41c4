"""What a response says about the next try, read from responses as httpx makes them."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

import jobs
from jobs.adapters.httpx import retry_after, rules
from jobs.classify import Layer, Reading, read_error
from jobs.errors import LONGEST_DELAY

SENT = "Sun, 06 Nov 1994 08:47:37 GMT"
TWO_MINUTES = timedelta(minutes=2)


def response(status: int = 429, **headers: str) -> httpx.Response:
    """A response with these headers, whose names are written with underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, headers=named, request=httpx.Request("GET", "http://a.test/"))


def read(answer: httpx.Response, **options: Any) -> Reading:
    """What the rules make of the error that the response raises."""
    with pytest.raises(httpx.HTTPStatusError) as caught:
        answer.raise_for_status()
    return read_error(caught.value, Layer("the registry", rules(**options)))


@pytest.mark.parametrize("status", [429, 503])
def test_seconds(status: int) -> None:
    reading = read(response(status, Retry_After="120"))
    assert reading == Reading("later", TWO_MINUTES, "the rule of the registry for HTTPStatusError")


@pytest.mark.parametrize(
    "date",
    [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
    ],
    ids=["imf-fixdate", "rfc850", "asctime"],
)
def test_a_date_counts_from_the_date_of_the_answer(date: str) -> None:
    assert retry_after(response(Retry_After=date, Date=SENT)) == TWO_MINUTES


def test_without_one_from_our_own_clock() -> None:
    then = datetime.now(UTC) + timedelta(hours=1)
    delay = retry_after(response(Retry_After=format_datetime(then, usegmt=True)))
    assert delay is not None
    assert timedelta(minutes=59) < delay <= timedelta(hours=1)


@pytest.mark.parametrize("sent", ["yesterday", "", "Sun, 99 Nov 1994 08:47:37 GMT"])
def test_nor_where_its_date_is_none(sent: str) -> None:
    then = datetime.now(UTC) + timedelta(hours=1)
    answer = response(Retry_After=format_datetime(then, usegmt=True), Date=sent)
    assert (retry_after(answer) or timedelta()) > timedelta(minutes=59)


def test_a_date_that_has_passed_is_now() -> None:
    assert retry_after(response(Retry_After=SENT)) == timedelta()
    assert retry_after(response(Retry_After="0")) == timedelta()


def test_centuries_are_cut() -> None:
    for value in ("9" * 18, "9" * 5000, "Fri, 31 Dec 9999 23:59:59 GMT"):
        assert retry_after(response(Retry_After=value)) == LONGEST_DELAY
    assert retry_after(response(Retry_After="0" * 50 + "120")) == TWO_MINUTES


@pytest.mark.parametrize("value", ["soon", "-5", "1.5", "", " ", "+5", "٣", "12 s", "GMT"])
def test_what_is_not_clear_goes_by_the_curve(value: str) -> None:
    answer = httpx.Response(429, headers=[(b"retry-after", value.encode())])
    assert retry_after(answer) is None


def test_so_does_an_answer_that_does_not_say_and_any_other_status() -> None:
    assert read(response(429)).why is None
    assert read(response(503)).why is None
    for status in (400, 404, 500, 502, 504):
        assert read(response(status, Retry_After="120")) == Reading("retry")


def test_statuses_can_be_declared_terminal() -> None:
    assert read(response(404), terminal={404, 410}).kind == "terminal"
    assert read(response(400), terminal={404, 410}).kind == "retry"
    assert read(response(429, Retry_After="120"), terminal={404}).delay == TWO_MINUTES


@pytest.mark.parametrize("status", [200, 399, 600, "404", None])
def test_a_status_that_is_no_error_is_refused(status: Any) -> None:
    with pytest.raises(jobs.DeclarationError, match="is no status of an error"):
        rules(terminal=[status])


def test_the_library_itself_never_imports_httpx() -> None:
    program = "import jobs, jobs.cli, sys; sys.exit('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

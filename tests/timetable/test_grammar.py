"""O-38 and O-40: what a cron expression is, what is refused, and how days and weekdays unite."""

from __future__ import annotations

import pytest

from jobs.errors import DeclarationError, ScheduleInvalid
from jobs.timetable import ALIASES, make, parse
from tests.timetable.asking import following

REFUSED = {
    "": "cron: ",
    "   ": "cron: ",
    "* * * *": "cron: ",
    "* * * * * *": "cron: ",
    "0 0 * * * * 2027": "cron: ",
    "@reboot": "cron: ",
    "@every 5m": "cron: ",
    "60 * * * *": "cron minute: ",
    "-1 * * * *": "cron minute: ",
    "*/0 * * * *": "cron minute: ",
    "*/60 * * * *": "cron minute: ",
    "5/15 * * * *": "cron minute: ",
    "5-1 * * * *": "cron minute: ",
    "1-5/0 * * * *": "cron minute: ",
    "1-5/9 * * * *": "cron minute: ",
    "1,,2 * * * *": "cron minute: ",
    "1, * * * *": "cron minute: ",
    "1.5 * * * *": "cron minute: ",
    "*5 * * * *": "cron minute: ",
    "**/5 * * * *": "cron minute: ",
    "R * * * *": "cron minute: ",
    "H * * * *": "cron minute: ",
    "H(0-29) * * * *": "cron minute: ",
    "mon * * * *": "cron minute: ",
    "\N{ARABIC-INDIC DIGIT FIVE} * * * *": "cron minute: ",
    "\N{SUPERSCRIPT TWO} * * * *": "cron minute: ",
    "99999999999999999999999 * * * *": "cron minute: ",
    "0 24 * * *": "cron hour: ",
    "0 0 0 * *": "cron day of month: ",
    "0 0 32 * *": "cron day of month: ",
    "0 0 L * *": "cron day of month: ",
    "0 0 15W * *": "cron day of month: ",
    "0 0 ? * *": "cron day of month: ",
    "0 0 30 2 *": "cron day of month: ",
    "0 0 31 2 *": "cron day of month: ",
    "0 0 31 4,6,9,11 *": "cron day of month: ",
    "0 0 30-31 FEB */2": "cron day of month: ",
    "0 0 * 0 *": "cron month: ",
    "0 0 * 13 *": "cron month: ",
    "0 0 * january *": "cron month: ",
    "0 0 * dec-jan *": "cron month: ",
    "0 0 * * 8": "cron day of week: ",
    "0 0 * * 5-1": "cron day of week: ",
    "0 0 * * FRI-MON": "cron day of week: ",
    "0 0 * * MON#1": "cron day of week: ",
    "0 0 * * 5L": "cron day of week: ",
    "0 0 * * jan": "cron day of week: ",
    "0\n0 * * *": "cron: ",
    "0 0 * * *\N{NO-BREAK SPACE}": "cron day of week: ",
}


NO_ZONES = [
    *("America/New_Yrok", "UTC+3", "CEST", "CET", "EST", "EST5EDT", "GMT", "+03:00", "Japan", ""),
    *("localtime", "Factory", "posix/Europe/Zurich", "right/Europe/Zurich", "America", "utc"),
    *("America/Argentina", "../etc/passwd", "Europe/../Europe/Zurich", "/etc/localtime"),
    *("Europe/Z\N{LATIN SMALL LETTER U WITH DIAERESIS}rich", "Europe/Zurich\0", "Europe/"),
]


class TestRefused:
    @pytest.mark.parametrize("text", REFUSED, ids=ascii)
    def test_it_names_the_field(self, text):
        with pytest.raises(ScheduleInvalid) as caught:
            parse(text)
        assert caught.value.cause.startswith(REFUSED[text])
        assert caught.value.field == REFUSED[text].removesuffix(": ")
        assert isinstance(caught.value, DeclarationError)

    def test_something_else_than_text(self):
        with pytest.raises(ScheduleInvalid, match="cron: must be text"):
            parse(5)  # type: ignore[arg-type]

    def test_a_novel(self):
        with pytest.raises(ScheduleInvalid, match="more than 255"):
            parse("0," * 200 + "0 * * * *")

    def test_a_range_that_goes_round_is_told_how_to_write_it(self):
        with pytest.raises(ScheduleInvalid, match="FRI-SUN,SUN-MON"):
            parse("0 0 * * FRI-MON")

    @pytest.mark.parametrize(
        "tz",
        NO_ZONES,
        ids=ascii,
    )
    def test_what_is_no_zone(self, tz):
        with pytest.raises(ScheduleInvalid, match=r"^tz: "):
            make(cron="0 3 * * *", tz=tz)

    def test_no_zone(self):
        with pytest.raises(ScheduleInvalid, match=r"^tz: "):
            make(cron="0 3 * * *")
        with pytest.raises(ScheduleInvalid, match=r"^tz: "):
            make(cron="0 3 * * *", tz=3)  # type: ignore[arg-type]


class TestTaken:
    @pytest.mark.parametrize("alias", ALIASES)
    def test_an_alias_means_its_fields(self, alias):
        fields = ALIASES[alias]
        after = ("UTC", "2026-07-05T00:00Z", 3)
        assert following(alias, *after) == following(fields, *after)
        assert parse(alias.upper()) == parse(alias)

    @pytest.mark.parametrize(
        ("one", "two"),
        [
            ("0 0 * jan,MAR mOn", "0 0 * 1,3 1"),
            ("\t0\t0  * * * ", "0 0 * * *"),
            ("0 0 * * 7", "0 0 * * 0"),
            ("0 0 * * 5-7", "0 0 * * FRI-SUN"),
            ("0 0 * * 5-7", "0 0 * * 0,5,6"),
            ("0 0 * * SUN-SAT", "0 0 * * 0-6"),
            ("*/20 * * * *", "0,20,40 * * * *"),
            ("10-30/10 * * * *", "10,20,30 * * * *"),
            ("007 01 * * *", "7 1 * * *"),
        ],
    )
    def test_two_spellings_are_one(self, one, two):
        after = ("UTC", "2026-07-05T00:00Z", 40)
        assert following(one, *after) == following(two, *after)

    def test_the_text_is_kept_with_single_spaces(self):
        assert parse("\t0  3 * *   MON").text == "0 3 * * MON"

    def test_the_29th_of_february(self):
        assert following("0 0 29 2 *", "UTC", "2096-01-01T00:00Z", 3) == [
            "2096-02-29 00:00+0000",
            "2104-02-29 00:00+0000",  # 2100 is no leap year
            "2108-02-29 00:00+0000",
        ]

    def test_the_longest_wait_of_all(self):
        # 29 February on a Sunday or Saturday; on one weekday alone across 2100 it is 40 years.
        found = following("0 0 29 2 */6", "UTC", "2088-12-31T00:00Z", 1)
        assert found == ["2116-02-29 00:00+0000"]


class TestDaysAndWeekdays:
    def test_either_is_enough(self):
        assert following("30 0 1 * 1", "UTC", "2026-05-31T00:00Z", 4) == [
            "2026-06-01 00:30+0000",
            "2026-06-08 00:30+0000",
            "2026-06-15 00:30+0000",
            "2026-06-22 00:30+0000",
        ]

    def test_no_friday_the_thirteenth(self):
        found = following("0 0 13 * 5", "UTC", "2025-12-31T23:00Z", 70)
        of_2026 = [one[:10] for one in found if one.startswith("2026")]
        # 52 Fridays and twelve thirteenths, three of which are both
        assert len(of_2026) == 52 + 12 - 3
        assert of_2026[:4] == ["2026-01-02", "2026-01-09", "2026-01-13", "2026-01-16"]

    def test_the_first_week_or_a_monday(self):
        found = following("0 0 1-7 * MON", "UTC", "2026-05-31T23:00Z", 11)
        days = [int(one[8:10]) for one in found if one.startswith("2026-06")]
        assert days == [1, 2, 3, 4, 5, 6, 7, 8, 15, 22, 29]

    def test_a_field_that_begins_with_a_star_restricts(self):
        # so that "every second day, and a Monday" can be said: as cron has always read it
        found = following("0 0 */2 * MON", "UTC", "2026-05-31T23:00Z", 3)
        assert [one[:10] for one in found] == ["2026-06-01", "2026-06-15", "2026-06-29"]

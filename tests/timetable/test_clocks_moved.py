"""O-36 and O-37: the hour that comes twice, the hour that does not come, the day that does not."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from jobs.timetable import make
from tests.timetable.asking import following

NEW_YORK = "America/New_York"


class TestTheHourThatComesTwice:
    def test_an_hourly_schedule_follows_the_time_that_passes(self):
        assert following("0 * * * *", NEW_YORK, "2026-11-01T00:30-04:00", 4) == [
            "2026-11-01 01:00-0400",
            "2026-11-01 01:00-0500",
            "2026-11-01 02:00-0500",
            "2026-11-01 03:00-0500",
        ]

    def test_the_instants_are_those_of_utc(self):
        table = make(cron="0 * * * *", tz=NEW_YORK)
        instant, found = datetime(2026, 11, 1, 4, 30, tzinfo=UTC), []
        for _ in range(3):
            instant = table.after(instant)
            found.append(instant.astimezone(UTC).strftime("%H:%MZ"))
        assert found == ["05:00Z", "06:00Z", "07:00Z"]

    def test_half_hours_are_half_an_hour_apart(self):
        assert following("*/30 * * * *", NEW_YORK, "2026-11-01T04:59Z", 6) == [
            "2026-11-01 01:00-0400",
            "2026-11-01 01:30-0400",
            "2026-11-01 01:00-0500",
            "2026-11-01 01:30-0500",
            "2026-11-01 02:00-0500",
            "2026-11-01 02:30-0500",
        ]

    def test_a_fixed_time_fires_once_and_the_first_time(self):
        assert following("30 1 * * *", NEW_YORK, "2026-10-31T12:00Z", 3) == [
            "2026-11-01 01:30-0400",
            "2026-11-02 01:30-0500",
            "2026-11-03 01:30-0500",
        ]

    def test_a_fixed_time_does_not_fire_again_for_one_who_asks_in_between(self):
        for after in ("2026-11-01T05:30Z", "2026-11-01T06:00Z", "2026-11-01T06:29:59Z"):
            assert following("30 1 * * *", NEW_YORK, after, 1) == ["2026-11-02 01:30-0500"]

    def test_a_list_of_fixed_hours_is_fixed(self):
        assert following("0 1,2 * * *", NEW_YORK, "2026-11-01T04:30Z", 3) == [
            "2026-11-01 01:00-0400",
            "2026-11-01 02:00-0500",
            "2026-11-02 01:00-0500",
        ]

    def test_a_range_of_fixed_hours_is_fixed(self):
        assert following("0 0-3 * * *", NEW_YORK, "2026-11-01T03:59Z", 4) == [
            "2026-11-01 00:00-0400",
            "2026-11-01 01:00-0400",
            "2026-11-01 02:00-0500",
            "2026-11-01 03:00-0500",
        ]

    def test_every_second_hour_follows_the_time_that_passes(self):
        assert following("0 */2 * * *", "Europe/Berlin", "2026-10-24T23:00Z", 3) == [
            "2026-10-25 02:00+0200",
            "2026-10-25 02:00+0100",
            "2026-10-25 04:00+0100",
        ]

    def test_a_fold_at_midnight_does_not_repeat_a_day(self):
        assert following("30 23 * * *", "America/Sao_Paulo", "2018-02-17T12:00Z", 3) == [
            "2018-02-17 23:30-0200",
            "2018-02-18 23:30-0300",
            "2018-02-19 23:30-0300",
        ]


class TestTheHourThatDoesNotCome:
    def test_its_time_fires_at_the_first_instant_behind_it(self):
        assert following("30 2 * * *", NEW_YORK, "2026-03-08T05:00Z", 2) == [
            "2026-03-08 03:00-0400",
            "2026-03-09 02:30-0400",
        ]

    def test_that_instant_in_utc(self):
        found = make(cron="30 2 * * *", tz=NEW_YORK).after(datetime(2026, 3, 8, 5, tzinfo=UTC))
        assert found.astimezone(UTC) == datetime(2026, 3, 8, 7, tzinfo=UTC)

    def test_several_times_in_it_fire_once(self):
        assert following("0,15,30,45 2 * * *", NEW_YORK, "2026-03-08T05:00Z", 2) == [
            "2026-03-08 03:00-0400",
            "2026-03-09 02:00-0400",
        ]

    def test_the_time_behind_it_is_not_repeated(self):
        assert following("0 2,3 * * *", NEW_YORK, "2026-03-08T05:00Z", 3) == [
            "2026-03-08 03:00-0400",
            "2026-03-09 02:00-0400",
            "2026-03-09 03:00-0400",
        ]

    def test_hourly_schedules_are_not_late(self):
        assert following("30 * * * *", NEW_YORK, "2026-03-08T06:00Z", 3) == [
            "2026-03-08 01:30-0500",
            "2026-03-08 03:30-0400",
            "2026-03-08 04:30-0400",
        ]

    def test_every_second_hour_misses_none(self):
        assert following("30 */2 * * *", NEW_YORK, "2026-03-08T05:00Z", 4) == [
            "2026-03-08 00:30-0500",
            "2026-03-08 03:30-0400",  # two hours later
            "2026-03-08 04:30-0400",
            "2026-03-08 06:30-0400",
        ]

    @pytest.mark.parametrize(
        ("tz", "after", "expected"),
        [
            (
                "America/Sao_Paulo",
                "2018-11-03T12:00Z",
                ["2018-11-04 01:00-0200", "2018-11-05 00:00-0200"],
            ),
            (
                "Africa/Cairo",
                "2026-04-23T12:00Z",
                ["2026-04-24 01:00+0300", "2026-04-25 00:00+0300"],
            ),
        ],
        ids=["Sao_Paulo", "Cairo"],
    )
    def test_a_midnight_that_does_not_exist(self, tz, after, expected):
        assert following("0 0 * * *", tz, after, 2) == expected

    def test_noon_is_noon_on_both_sides(self):
        assert following("0 12 * * *", NEW_YORK, "2026-10-31T12:00Z", 3) == [
            "2026-10-31 12:00-0400",
            "2026-11-01 12:00-0500",
            "2026-11-02 12:00-0500",
        ]
        assert following("0 12 * * *", NEW_YORK, "2026-03-07T12:00Z", 3) == [
            "2026-03-07 12:00-0500",
            "2026-03-08 12:00-0400",
            "2026-03-09 12:00-0400",
        ]

    def test_a_weekly_schedule_loses_no_week(self):
        assert following("0 12 * * 0", "Europe/Berlin", "2026-03-26T00:00Z", 2) == [
            "2026-03-29 12:00+0200",
            "2026-04-05 12:00+0200",
        ]

    def test_half_an_hour(self):
        assert following("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00Z", 2) == [
            "2026-10-04 02:30+1100",
            "2026-10-05 02:15+1100",
        ]


class TestTheDayThatDoesNotCome:
    def test_it_fires_at_the_first_instant_of_the_next(self):
        assert following("0 12 * * *", "Pacific/Apia", "2011-12-29T12:00Z", 4) == [
            "2011-12-29 12:00-1000",
            "2011-12-31 00:00+1400",
            "2011-12-31 12:00+1400",
            "2012-01-01 12:00+1400",
        ]

    def test_its_midnight_is_that_of_the_next(self):
        assert following("0 0 * * *", "Pacific/Apia", "2011-12-29T00:00Z", 3) == [
            "2011-12-29 00:00-1000",
            "2011-12-31 00:00+1400",
            "2012-01-01 00:00+1400",
        ]

    def test_an_hourly_schedule_goes_on(self):
        assert following("0 * * * *", "Pacific/Apia", "2011-12-30T08:30Z", 3) == [
            "2011-12-29 23:00-1000",
            "2011-12-31 00:00+1400",
            "2011-12-31 01:00+1400",
        ]

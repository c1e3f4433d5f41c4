"""Limits of a process: the numbers, what they leave of a claim, what is remembered."""

from __future__ import annotations

import math
from typing import Any

import pytest

import jobs
from jobs.worker.limits import (
    MOST_TENANTS,
    REFUSAL_LIFE,
    SWEEP_EVERY,
    UNBOUNDED,
    Grant,
    Limiter,
)
from tests.runtime.working import Gate, make

FIELDS = ["per_tenant", "per_queue", "total", "rate_per_tenant", "burst_per_tenant"]


def limiter(**limits: Any) -> Limiter:
    return Limiter(jobs.Limits(**limits))


def rooms(limits: Limiter, now: float = 0.0) -> dict[str, int]:
    """What the listed tenants may have now."""
    room = limits.tenant_room(now)
    assert room is not None
    return dict(zip(room.tenants, room.rooms, strict=True))


def admit(limits: Limiter, tenant: str, count: int = 1, now: float = 0.0) -> list[Grant]:
    return [limits.admit("q", tenant, now) for _ in range(count)]


class TestNumbers:
    @pytest.mark.parametrize("field", FIELDS)
    @pytest.mark.parametrize(
        "value", [-1, -0.5, math.nan, math.inf, -math.inf, True, "5", 10**7, [1]], ids=repr
    )
    def test_a_bad_one_is_refused_by_name(self, field: str, value: object) -> None:
        rate = {"rate_per_tenant": 1} if field == "burst_per_tenant" else {}
        with pytest.raises(jobs.ConfigError, match=f"limits.{field} is") as caught:
            jobs.Limits(**(rate | {field: value}))  # type: ignore[arg-type]
        assert caught.value.code == "JOB_CONFIG_INVALID"

    @pytest.mark.parametrize("field", [field for field in FIELDS if field != "rate_per_tenant"])
    def test_counts_are_whole(self, field: str) -> None:
        with pytest.raises(jobs.ConfigError, match="whole number"):
            jobs.Limits(**{field: 1.5})  # type: ignore[arg-type]

    @pytest.mark.parametrize("field", FIELDS)
    @pytest.mark.parametrize("value", [0, 1, 1_000_000])
    def test_zero_to_a_million_is_accepted(self, field: str, value: int) -> None:
        rate = {"rate_per_tenant": 1} if field == "burst_per_tenant" else {}
        assert getattr(jobs.Limits(**(rate | {field: value})), field) == value  # type: ignore[arg-type]

    def test_a_rate_may_be_a_fraction(self) -> None:
        assert jobs.Limits(rate_per_tenant=0.25).burst == 1
        assert jobs.Limits(rate_per_tenant=2.5).burst == 3

    def test_a_burst_needs_a_rate(self) -> None:
        with pytest.raises(jobs.ConfigError, match="without rate_per_tenant"):
            jobs.Limits(burst_per_tenant=3)

    def test_a_worker_takes_nothing_else(self) -> None:
        with pytest.raises(jobs.ConfigError, match=r"expected a jobs\.Limits"):
            make("dbname=nowhere", Gate().job, limits={"total": 3})


class TestTotal:
    def test_a_claim_asks_for_what_is_left(self) -> None:
        limits = limiter(total=5)
        assert limits.shrink({"q": 3}) == {"q": 3}
        admit(limits, "", 3)
        assert limits.shrink({"q": 3}) == {"q": 2}
        admit(limits, "", 2)
        assert limits.shrink({"q": 3}) == {}

    def test_queues_get_equal_parts(self) -> None:
        assert limiter(total=6).shrink({"a": 50, "b": 50, "c": 50}) == {"a": 2, "b": 2, "c": 2}

    def test_what_one_does_not_want_the_others_get(self) -> None:
        given = limiter(total=10).shrink({"a": 1, "b": 50, "c": 50})
        assert given["a"] == 1
        assert sum(given.values()) == 10
        assert min(given["b"], given["c"]) >= 4

    def test_another_queue_is_first_each_time(self) -> None:
        limits = limiter(total=1)
        given = [limits.shrink({"a": 5, "b": 5, "c": 5}) for _ in range(6)]
        assert sorted(next(iter(one)) for one in given) == ["a", "a", "b", "b", "c", "c"]
        assert all(sum(one.values()) == 1 for one in given)

    def test_more_than_allowed_held_leaves_nothing(self) -> None:
        limits = limiter(total=2)
        admit(limits, "", 4)  # rescued ones come on top
        assert limits.shrink({"q": 3}) == {}


class TestPerQueue:
    def test_each_queue_has_its_own_count(self) -> None:
        limits = limiter(per_queue=2)
        limits.admit("a", "", 0)
        assert limits.shrink({"a": 9, "b": 9}) == {"a": 1, "b": 2}
        limits.admit("a", "", 0)
        assert limits.shrink({"a": 9, "b": 9}) == {"b": 2}

    def test_both_together(self) -> None:
        assert sum(limiter(per_queue=3, total=4).shrink({"a": 9, "b": 9}).values()) == 4


class TestPerTenant:
    def test_none_without_a_tenants_limit(self) -> None:
        assert limiter(total=3, per_queue=2).tenant_room(0) is None

    def test_only_those_with_less_room_are_listed(self) -> None:
        limits = limiter(per_tenant=3)
        room = limits.tenant_room(0)
        assert room is not None
        assert (room.default, room.tenants) == (3, [])
        admit(limits, "a", 1)
        admit(limits, "b", 3)
        assert rooms(limits) == {"a": 2, "b": 0}

    def test_more_than_allowed_is_no_room(self) -> None:
        limits = limiter(per_tenant=1)
        admit(limits, "a", 3)
        assert rooms(limits) == {"a": 0}

    def test_jobs_without_a_tenant_are_not_counted(self) -> None:
        limits = limiter(per_tenant=1, rate_per_tenant=1)
        admit(limits, "", 5)
        assert rooms(limits) == {}
        assert (limits.tenants_counted, limits.tenants_paced) == (0, 0)


class TestRate:
    def test_a_burst_and_then_the_rate(self) -> None:
        limits = limiter(rate_per_tenant=2, burst_per_tenant=4)
        admit(limits, "a", 4)
        assert rooms(limits, 0) == {"a": 0}
        assert rooms(limits, 0.49) == {"a": 0}
        assert rooms(limits, 0.5) == {"a": 1}
        assert rooms(limits, 1.0) == {"a": 2}
        assert rooms(limits, 2.0) == {}, "as any other"

    def test_over_a_long_time_it_is_the_rate(self) -> None:
        limits, started = limiter(rate_per_tenant=3), 0
        for step in range(1_000):
            now = step / 10
            for _ in range(rooms(limits, now).get("a", 3)):
                admit(limits, "a", now=now)[0].release()
                started += 1
        assert 297 <= started <= 303

    def test_the_room_is_the_smaller_of_count_and_rate(self) -> None:
        limits = limiter(per_tenant=2, rate_per_tenant=5)
        admit(limits, "a", 1)
        assert rooms(limits) == {"a": 1}
        held = admit(limits, "b", 2)
        for grant in held:
            grant.release()
        assert rooms(limits)["a"] == 1
        assert "b" not in rooms(limits), "3 by rate, 2 by count, as any other"

    def test_when_the_next_may_start(self) -> None:
        limits = limiter(rate_per_tenant=0.5)
        assert limits.next_at(0) is None
        admit(limits, "a")
        assert limits.next_at(0) == pytest.approx(2.0)
        admit(limits, "b", now=1.0)
        assert limits.next_at(1.5) == pytest.approx(2.0)
        assert limits.next_at(2.5) == pytest.approx(3.0)
        assert limits.next_at(3.5) is None

    def test_one_that_is_full_waits_for_an_end_and_not_for_a_time(self) -> None:
        limits = limiter(per_tenant=1, rate_per_tenant=0.5)
        admit(limits, "a")
        assert limits.next_at(0) is None

    def test_a_clock_that_stands_still_gives_nothing(self) -> None:
        limits = limiter(rate_per_tenant=1000)
        admit(limits, "a", 1000, now=5)
        assert [rooms(limits, 5)["a"] for _ in range(3)] == [0, 0, 0]


class TestZero:
    def test_total_and_queue(self) -> None:
        assert limiter(total=0).shrink({"q": 5}) == {}
        assert limiter(per_queue=0).shrink({"q": 5}) == {}

    @pytest.mark.parametrize(
        "limits",
        [
            {"per_tenant": 0},
            {"rate_per_tenant": 0},
            {"rate_per_tenant": 0.0, "per_tenant": 5},
            {"rate_per_tenant": 5, "burst_per_tenant": 0},
            {"rate_per_tenant": 0, "burst_per_tenant": 7},
        ],
        ids=repr,
    )
    def test_tenants(self, limits: dict[str, Any]) -> None:
        stopped = limiter(**limits)
        room = stopped.tenant_room(0)
        assert room is not None
        assert room.default == 0
        assert stopped.stops_tenants
        admit(stopped, "a")  # whatever came anyway
        room = stopped.tenant_room(1e6)
        assert room is not None
        assert room.default == 0
        assert stopped.next_at(1e6) is None, "it never ends"


class TestGrants:
    def test_a_release_frees_everything_once(self) -> None:
        limits = limiter(per_tenant=1, per_queue=1, total=1)
        first = admit(limits, "a")[0]
        assert first.release() is True
        second = admit(limits, "a")[0]
        assert first.release() is False
        assert first.abandon() is False
        assert limits.held == 1
        assert rooms(limits) == {"a": 0}
        assert second.release() is True
        assert (limits.held, limits.tenants_counted, limits._queues) == (0, 0, {})

    def test_a_release_says_whether_a_limit_was_reached(self) -> None:
        limits = limiter(per_tenant=2, total=9)
        first, second = admit(limits, "a", 2)
        assert first.release() is True
        assert second.release() is False

    @pytest.mark.parametrize("limit", [{"total": 1}, {"per_queue": 1}, {"per_tenant": 1}], ids=repr)
    def test_each_limit_counts_as_reached(self, limit: dict[str, int]) -> None:
        assert admit(limiter(**limit), "a")[0].release() is True

    def test_no_limit_is_never_reached(self) -> None:
        assert admit(limiter(), "a")[0].release() is False

    def test_a_release_keeps_the_mark_of_the_start(self) -> None:
        limits = limiter(rate_per_tenant=1)
        admit(limits, "a")[0].release()
        assert rooms(limits) == {"a": 0}

    def test_what_never_started_takes_its_mark_along(self) -> None:
        limits = limiter(rate_per_tenant=1)
        grant = admit(limits, "a")[0]
        assert grant.abandon() is True
        assert rooms(limits) == {}
        assert grant.abandon() is False
        assert rooms(limits) == {}

    def test_an_abandoned_one_gives_no_more_than_there_was(self) -> None:
        limits = limiter(rate_per_tenant=1, burst_per_tenant=2)
        grant = admit(limits, "a")[0]
        rooms(limits, 100)
        grant.abandon()
        admit(limits, "a", 2, now=100)
        assert rooms(limits, 100) == {"a": 0}

    def test_an_abandoned_one_whose_pace_was_forgotten(self) -> None:
        limits = limiter(rate_per_tenant=1)
        grant = admit(limits, "a")[0]
        limits._buckets.clear()
        assert grant.abandon() is False
        assert limits.tenants_paced == 0


class TestBounds:
    def test_a_counter_at_zero_is_deleted(self) -> None:
        limits = limiter(per_tenant=5, per_queue=5)
        for grant in admit(limits, "a", 2):
            grant.release()
        assert limits.tenants_counted == 0
        assert not limits._tenants
        assert not limits._queues

    def test_no_more_than_so_many_paces(self) -> None:
        limits = limiter(rate_per_tenant=0.001, burst_per_tenant=2)
        for n in range(MOST_TENANTS + 50):
            admit(limits, f"t{n}")[0].release()
            assert limits.tenants_paced <= MOST_TENANTS
        assert limits.tenants_paced > MOST_TENANTS * 0.8

    def test_the_least_throttled_are_forgotten_first(self) -> None:
        limits = limiter(rate_per_tenant=0.001, burst_per_tenant=4)
        for n in range(MOST_TENANTS):
            admit(limits, f"t{n}", 3 if n % 10 else 1)  # a tenth has had one, the others three
        admit(limits, "new")
        gone = {f"t{n}" for n in range(MOST_TENANTS)} - limits._buckets.keys()
        assert gone
        assert all(int(tenant[1:]) % 10 == 0 for tenant in gone)

    def test_refusals_are_bounded_too_and_the_oldest_go(self) -> None:
        limits = limiter(per_tenant=1)
        for n in range(MOST_TENANTS + 10):
            limits._refuse(f"t{n}", n / 1e6)
        assert limits.tenants_refused <= MOST_TENANTS
        assert "t0" not in limits._refused
        assert f"t{MOST_TENANTS + 9}" in limits._refused

    def test_a_refusal_is_forgotten_after_a_minute(self) -> None:
        limits = limiter(per_tenant=1)
        limits.tenant_room(0)  # the first sweep
        grant = admit(limits, "a")[0]
        assert rooms(limits, 10) == {"a": 0}
        assert limits.tenants_refused == 1
        grant.release()
        limits.tenant_room(SWEEP_EVERY)  # held back 50 s ago
        assert limits.tenants_refused == 1
        limits.tenant_room(2 * SWEEP_EVERY)
        assert limits.tenants_refused == 0

    def test_one_that_is_refused_again_stays(self) -> None:
        limits = limiter(per_tenant=1)
        admit(limits, "a")
        for at in range(0, 600, 30):
            assert rooms(limits, at) == {"a": 0}
        assert limits.tenants_refused == 1

    def test_a_sweep_comes_once_a_minute_at_most(self) -> None:
        limits = limiter(rate_per_tenant=1)
        limits.tenant_room(100)
        admit(limits, "a", now=100)
        limits.tenant_room(100 + SWEEP_EVERY - 0.1)
        assert limits.tenants_paced == 1, "full again, but not swept yet"
        limits.tenant_room(100 + SWEEP_EVERY)
        assert limits.tenants_paced == 0

    def test_a_sweep_keeps_who_is_still_too_fast(self) -> None:
        limits = limiter(rate_per_tenant=0.001)
        admit(limits, "a")
        limits.tenant_room(SWEEP_EVERY)
        assert rooms(limits, 2 * SWEEP_EVERY) == {"a": 0}

    def test_what_a_quiet_tenant_gets_is_said_once(self) -> None:
        room = limiter(rate_per_tenant=1.0).tenant_room(0)
        assert room is not None
        assert room.default == 1
        room = limiter(rate_per_tenant=1.0, burst_per_tenant=1_000_000).tenant_room(0)
        assert room is not None
        assert room.default <= UNBOUNDED

    def test_the_lifes_are_what_is_documented(self) -> None:
        assert (MOST_TENANTS, SWEEP_EVERY, REFUSAL_LIFE) == (20_000, 60.0, 60.0)

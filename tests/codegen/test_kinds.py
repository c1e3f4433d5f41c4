"""Every supported type, there and back, on a server."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import psycopg
import pytest
from psycopg import AsyncConnection, Connection
from psycopg.adapt import Dumper, Loader
from psycopg.types.string import StrDumper

from codegen.sqlc_gen_python.types import BY_SPELLING
from tests.codegen.conftest import Modules, call, strictly

UTC = dt.UTC
AT = dt.datetime(2024, 3, 31, 2, 30, 0, 123456, tzinfo=UTC)
TOKEN = UUID("0189aaaa-0000-7000-8000-00000000000f")
HARD_TEXTS = [
    "", " ", "plain", "null", "NULL", r"\N", "\\", "\\\\", '"', '""', '\\"', "'", "a,b", "{a}",
    "{}", "tab\there", "line\nfeed", "return\rhere", "\b\f\v", r"\t", r"\x41", r"\.", "\\.\n",
    "é", "日本語", "\U0001f600", "a\u0301", "\u202e", "\x01\x1f\x7f", "trailing ", " leading", "%s",
    "$1", "--", "/*",
]  # fmt: skip


def values(hostile: Modules, **over: Any) -> dict[str, Any]:
    """Arguments for PutKind: something for every type, None wherever that is allowed."""
    op = hostile["enums"].Op
    required: dict[str, Any] = {
        "id": 1, "flag": True, "small": -(2**15), "medium": 2**31 - 1, "large": -(2**63),
        "ratio": 0.1, "half": 0.5, "amount": Decimal("-12345678901234567890.000100"),
        "label": "label", "short": "short", "token": TOKEN, "at": AT, "day": dt.date(1, 1, 1),
        "span": dt.timedelta(days=1, microseconds=-1), "raw": bytes(range(256)),
        "doc": '{"a": [1, null]}', "plain": '{"b":  2}', "op": op.LT_EQ, "labels_full": [],
    }  # fmt: skip
    nullable = [
        "flag_null", "small_null", "medium_null", "large_null", "ratio_null", "half_null",
        "amount_null", "label_null", "short_null", "token_null", "at_null", "day_null", "span_null",
        "raw_null", "doc_null", "plain_null", "op_null", "flags", "smalls", "mediums", "larges",
        "ratios", "amounts", "labels", "tokens", "ats", "days", "spans", "raws", "docs", "ops",
    ]  # fmt: skip
    return {**required, **dict.fromkeys(nullable), **over}


def test_values_and_nulls(hostile: Modules, fx: Connection[Any]) -> None:
    kinds = hostile["kinds"]
    given = values(hostile)
    assert call(kinds.put_kind, fx, **given) is None
    row = call(kinds.get_kind, fx, id=1)
    expected = {**given, "doc": {"a": [1, None]}, "plain": {"b": 2}}
    assert row._asdict() == expected
    assert type(row.raw) is bytes
    assert type(row.op) is hostile["enums"].Op
    assert str(row.amount) == "-12345678901234567890.000100"


def test_optional_values_and_arrays(hostile: Modules, fx: Connection[Any]) -> None:
    kinds, op = hostile["kinds"], hostile["enums"].Op
    given = values(
        hostile,
        flag=False, flag_null=False, small_null=1, medium_null=-1, large_null=2**63 - 1,
        ratio_null=float("inf"), half_null=-0.25, amount_null=Decimal("1E+10"), label_null="",
        short_null="s", token_null=TOKEN, at_null=AT, day_null=dt.date(9999, 12, 31),
        span_null=dt.timedelta(0), raw_null=b"", doc_null="null", plain_null="[]",
        op_null=op.VALUE_2ND,
        flags=[True, None, False], smalls=[1, None], mediums=[None], larges=[2**40, -1],
        ratios=[1e-300, None, float("-inf")], amounts=[Decimal("0.10"), None, Decimal(7)],
        labels=HARD_TEXTS, tokens=[TOKEN, None], ats=[AT, None], days=[dt.date(2024, 1, 1), None],
        spans=[dt.timedelta(seconds=-1), None], raws=[b"", b'\\"{}', None, bytes(range(256))],
        docs=['{"a": "\\"x\\\\"}', "null", None], ops=[*op, None], labels_full=["a", "b"],
    )  # fmt: skip
    call(kinds.put_kind, fx, **given)
    row = call(kinds.get_kind, fx, id=1)
    expected = {
        **given, "doc": {"a": [1, None]}, "plain": {"b": 2}, "doc_null": None, "plain_null": [],
        "docs": [{"a": '"x\\'}, None, None],
    }  # fmt: skip
    assert row._asdict() == expected
    assert {type(item) for item in row.raws} == {bytes, type(None)}


@pytest.mark.parametrize("empty", [[], ()])
def test_empty_arrays(hostile: Modules, fx: Connection[Any], empty: Any) -> None:
    kinds = hostile["kinds"]
    names = ["flags", "labels", "raws", "ops", "spans", "tokens"]
    call(kinds.put_kind, fx, **values(hostile, **dict.fromkeys(names, empty)))
    row = call(kinds.get_kind, fx, id=1)
    assert [getattr(row, name) for name in names] == [[]] * len(names)


def test_json_null_is_not_sql_null(hostile: Modules, fx: Connection[Any]) -> None:
    kinds = hostile["kinds"]
    call(kinds.put_kind, fx, **values(hostile, id=1, doc_null="null"))
    call(kinds.put_kind, fx, **values(hostile, id=2, doc_null=None))
    assert call(kinds.doc_nulls, fx, id=1) == (None, False, "null")
    assert call(kinds.doc_nulls, fx, id=2) == (None, True, None)
    assert call(kinds.doc_nulls, fx, id=3) is None


def test_bare_enum_columns(hostile: Modules, fx: Connection[Any]) -> None:
    kinds, op = hostile["kinds"], hostile["enums"].Op
    for at, member in enumerate(op):
        call(kinds.put_kind, fx, **values(hostile, id=at, op=member, ops=[member, None]))
    found = call(kinds.kind_ops, fx, ops=[*op, None], but=None)
    assert found == [member for member in op if member is not op.VALUE_2ND]
    assert call(kinds.kind_ops, fx, ops=[op.EQ, op.LT], but=op.EQ) == [op.LT]
    assert call(kinds.kind_op_lists, fx) == [[member, None] for member in op]
    assert all(type(item) is op for item in found)


INTERVALS = [
    dt.timedelta(0),
    dt.timedelta(microseconds=1),
    dt.timedelta(microseconds=-1),
    dt.timedelta(days=-1, microseconds=1),
    dt.timedelta(days=3, hours=23, minutes=59, seconds=59, microseconds=999999),
    -dt.timedelta(days=3, hours=23, minutes=59, seconds=59, microseconds=999999),
    dt.timedelta(days=365 * 1000, seconds=1),
    -dt.timedelta(days=365 * 1000, seconds=1),
]
MOMENTS = [
    AT,
    dt.datetime.min.replace(tzinfo=UTC),
    dt.datetime.max.replace(tzinfo=UTC),
    AT.astimezone(ZoneInfo("Europe/Zurich")),
    dt.datetime(1850, 1, 1, tzinfo=ZoneInfo("Europe/Zurich")),  # an offset with seconds
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-23, minutes=-59))),
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=1, microseconds=5))),
    dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Zurich")),
]


@pytest.mark.majors
def test_the_numbers_of_the_types_are_the_servers(conn: Connection[Any]) -> None:
    for spelling, kind in BY_SPELLING.items():
        if spelling == "string":
            continue  # what sqlc calls a text literal
        found = conn.execute(
            "select t.oid, t.typarray from pg_catalog.pg_type as t where t.oid = %s::regtype",
            [spelling],
        ).fetchone()
        assert found == (kind.oid, kind.array_oid), spelling


@pytest.mark.majors
@pytest.mark.parametrize("style", ["postgres", "sql_standard", "iso_8601", "postgres_verbose"])
def test_intervals_are_exact_in_every_style(
    hostile: Modules, fx: Connection[Any], style: str
) -> None:
    fx.execute(f"set intervalstyle = {style}")
    encode = hostile["_encode"].interval
    for value in INTERVALS:
        found = psycopg.RawCursor(fx).execute(
            "select extract(epoch from $1::interval)::numeric * 1000000", [encode(value)]
        )
        assert found.fetchone() == (value // dt.timedelta(microseconds=1),)


@pytest.mark.majors
def test_a_day_is_24_hours_where_the_clocks_change(hostile: Modules, fx: Connection[Any]) -> None:
    fx.execute("set timezone = 'Europe/Zurich'")
    eve = dt.datetime(2024, 3, 30, 12, tzinfo=ZoneInfo("Europe/Zurich"))
    found = psycopg.RawCursor(fx).execute(
        "select $1::timestamptz + $2::interval",
        [hostile["_encode"].timestamptz(eve), hostile["_encode"].interval(dt.timedelta(days=1))],
    )
    assert found.fetchone() == (eve.astimezone(UTC) + dt.timedelta(days=1),)


@pytest.mark.majors
def test_moments_are_exact_in_every_style(hostile: Modules, fx: Connection[Any]) -> None:
    probe = "select extract(epoch from $1::timestamptz)::numeric * 1000000"
    epoch = dt.datetime(1970, 1, 1, tzinfo=UTC)
    for style in ("ISO, MDY", "SQL, DMY", "German, YMD", "Postgres, DMY"):
        fx.execute("select set_config('datestyle', %s, false)", [style])
        for value in MOMENTS:
            text = hostile["_encode"].timestamptz(value)
            micros = (value - epoch) // dt.timedelta(microseconds=1)
            assert psycopg.RawCursor(fx).execute(probe, [text]).fetchone() == (micros,), text


def test_floats_and_numbers_survive(hostile: Modules, fx: Connection[Any]) -> None:
    probe = hostile["kinds"].encode_probe
    pick = random.Random(7)
    floats = [0.0, -0.0, 1e308, 5e-324, float("inf"), float("-inf"), 2**53 + 1.0]
    floats += [pick.uniform(-1, 1) * 10 ** pick.randint(-300, 300) for _ in range(200)]
    numbers = [Decimal("1E-400"), Decimal("-0.000"), Decimal(10**60), Decimal("1.10")]
    for ratio in floats:
        amount = pick.choice(numbers)
        row = call(probe, fx, span=INTERVALS[0], at=AT, ratio=ratio, amount=amount, raw=b"",
                   label="")  # fmt: skip
        assert (row.ratio, row.amount) == (ratio, amount)
    # What pydantic calls no number is one to PostgreSQL: not held against the annotation.
    odd = {"span": INTERVALS[0], "at": AT, "raw": b"", "label": ""}
    row = probe(fx, ratio=float("nan"), amount=Decimal("-NaN"), **odd)
    assert math.isnan(row.ratio)
    assert row.amount.is_nan()
    row = probe(fx, ratio=0.0, amount=Decimal("-Infinity"), **odd)
    assert row.amount == Decimal("-Infinity")


class _Shout(Loader):
    def load(self, data: Any) -> str:
        return bytes(data).decode().upper() + "!"


class _Odd(Dumper):
    oid = psycopg.adapters.types["varchar"].oid

    def dump(self, _obj: Any) -> bytes:
        return b"odd"


@pytest.mark.parametrize("dumper", [StrDumper, _Odd])
def test_what_the_owner_of_the_connection_registered_changes_nothing(
    hostile: Modules, fx: Connection[Any], dumper: type[Dumper]
) -> None:
    kinds = hostile["kinds"]
    call(kinds.put_kind, fx, **values(hostile, labels=["a"], tokens=[TOKEN]))
    before = call(kinds.get_kind, fx, id=1)
    fx.adapters.register_dumper(str, dumper)
    fx.adapters.register_dumper(int, _Odd)
    for name in ("text", "uuid", "jsonb", "timestamptz", "interval", "int8", "bool", "bytea"):
        fx.adapters.register_loader(name, _Shout)
    fx.adapters.register_loader(0, _Shout)
    fx.row_factory = psycopg.rows.dict_row
    fx.cursor_factory = psycopg.ClientCursor
    assert call(kinds.get_kind, fx, id=1) == before
    assert call(kinds.kind_op_lists, fx) == [None]
    assert fx.execute("select 'a'::text as a").fetchone() == {"a": "A!"}


@pytest.mark.parametrize("size", [0, 1, 2, 40_000])
def test_copy_streams_awkward_rows(hostile: Modules, fx: Connection[Any], size: int) -> None:
    kinds, op = hostile["kinds"], hostile["enums"].Op
    rows = [_copy_row(hostile, at, HARD_TEXTS[at % len(HARD_TEXTS)]) for at in range(size)]
    live = 0

    def feed() -> Any:
        nonlocal live
        for row in rows:
            live += 1
            yield [row]

    assert call(kinds.copy_kinds, fx, feed()) == size == live
    for at in {0, size // 2, size - 1} & set(range(size)):
        row, text = call(kinds.get_kind, fx, id=at), HARD_TEXTS[at % len(HARD_TEXTS)]
        assert (row.label, row.label_null, row.labels) == (text, None, [text, None])
        assert row.raws == [text.encode(), None]
        assert row.doc == {"t": text}
        assert (row.op, row.ops) == (op.BACK_BACKSLASH_SLASH, [*op, None])
    if size > len(HARD_TEXTS):
        found = fx.execute("select label from fx.kind order by id limit 40").fetchall()
        assert [label for (label,) in found] == (HARD_TEXTS * 2)[:40]


async def test_copy_asynchronously(hostile: Modules, afx: AsyncConnection[Any]) -> None:
    kinds = hostile["kinds"]
    rows = [_copy_row(hostile, at, text) for at, text in enumerate(HARD_TEXTS)]
    copied = await kinds.copy_kinds_async(afx, [rows[:2], [], rows[2:]])
    assert strictly(kinds.copy_kinds_async, copied) == len(rows)
    for at, text in enumerate(HARD_TEXTS):
        row = await kinds.get_kind_async(afx, id=at)
        assert (row.label, row.short) == (text, "s")


def test_copy_into_quoted_columns(hostile: Modules, fx: Connection[Any]) -> None:
    words = hostile["words"], hostile["kinds"]
    row = words[1].CopyWordsParams(id=1, class_="c", import_=2, order=3, mixed=None)
    assert call(words[1].copy_words, fx, [[row]]) == 1
    assert call(words[0].get_word, fx, id=1)[:4] == (1, "c", None, 2)


def test_a_failing_source_of_a_copy_leaves_nothing(hostile: Modules, fx: Connection[Any]) -> None:
    kinds = hostile["kinds"]

    def feed() -> Any:
        yield [_copy_row(hostile, 1, "a")]
        raise RuntimeError("source failed")

    with pytest.raises(RuntimeError, match="source failed"):
        kinds.copy_kinds(fx, feed())
    assert call(kinds.get_kind, fx, id=1) is None


def _copy_row(hostile: Modules, id: int, text: str) -> Any:
    op = hostile["enums"].Op
    return hostile["kinds"].CopyKindsParams(
        id=id, flag=True, small=1, medium=2, large=3, ratio=0.5, half=0.5, amount=Decimal("1.0"),
        label=text, short="s", token=TOKEN, at=AT, day=AT.date(), span=INTERVALS[4],
        raw=text.encode(), doc=json.dumps({"t": text}), plain=json.dumps([text]),
        op=op.BACK_BACKSLASH_SLASH, label_null=None, doc_null=None, labels=[text, None],
        raws=[text.encode(), None], ops=[*op, None], labels_full=[],
    )  # fmt: skip


def test_one_plan_a_statement_whatever_the_values(hostile: Modules, fx: Connection[Any]) -> None:
    fx.prepare_threshold = 0
    kinds = hostile["kinds"]
    many: list[Callable[[], Any]] = [
        lambda: kinds.doc_nulls(fx, id=1),
        lambda: kinds.doc_nulls(fx, id=2**14),
        lambda: kinds.doc_nulls(fx, id=2**30),
        lambda: kinds.doc_nulls(fx, id=2**62),
        lambda: hostile["gaps"].parents_by_any(fx, ids=[1], titles=[None]),
        lambda: hostile["gaps"].parents_by_any(fx, ids=[2**62, None], titles=[]),
        lambda: hostile["gaps"].parents_by_any(fx, ids=[], titles=["x"]),
        lambda: kinds.kind_ops(fx, ops=[], but=None),
        lambda: kinds.kind_ops(fx, ops=[None], but="="),
    ]
    for run in many:
        run()
        run()
    found = fx.execute(
        "select substring(statement from '/. (fx:\\w+)') as name, count(*) "
        "from pg_prepared_statements where statement like 'select /_ fx:%' group by 1"
    ).fetchall()
    assert sorted(found) == [("fx:doc_nulls", 1), ("fx:kind_ops", 1), ("fx:parents_by_any", 1)]


@pytest.mark.parametrize(
    "setting",
    ["datestyle to 'SQL, DMY'", "datestyle to 'German'", "intervalstyle to 'sql_standard'"],
)
def test_a_session_that_spells_times_its_own_way_changes_nothing(
    hostile: Modules, fx: Connection[Any], setting: str
) -> None:
    probe = hostile["kinds"].encode_probe
    row = {"span": INTERVALS[0], "at": AT, "ratio": 1.5, "amount": Decimal("1.50"), "raw": b"\0"}
    before = call(probe, fx, **row, label="é")
    fx.execute(f"set {setting}")
    assert call(probe, fx, **row, label="é") == before

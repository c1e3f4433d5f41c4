"""Case O-52 on a server: each query returns exactly what its type says."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from psycopg import AsyncConnection, Connection
from pydantic import ValidationError

from tests.codegen.conftest import Modules, call, strictly

HOUR = dt.timedelta(hours=1)


@pytest.fixture
def family(hostile: Modules, fx: Connection[Any]) -> Connection[Any]:
    """Parent 1 with two children, parent 2 with nothing at all."""
    gaps = hostile["gaps"]
    assert call(gaps.add_parent, fx, id=1, title="one", alias=None, nick="uno") == 1
    assert call(gaps.add_parent, fx, id=2, title="x", alias=None, nick=None) == 2
    added = call(
        gaps.add_children,
        fx,
        ids=[10, 11],
        parent_ids=[1, 1],
        amounts=[5, 7],
        notes=["first", None],
    )
    assert added == 2
    return fx


def test_left_join_to_a_subselect_without_a_match(
    hostile: Modules, family: Connection[Any]
) -> None:
    rows = call(hostile["gaps"].left_join_subselect, family)
    assert rows == [(1, 5, "first"), (1, 7, None), (2, None, None)]


def test_coalesce_of_two_nulls(hostile: Modules, family: Connection[Any]) -> None:
    rows = call(hostile["gaps"].coalesce_nullables, family)
    assert rows == [(1, "uno", "nobody"), (2, None, "nobody")]


def test_any_with_null_elements(hostile: Modules, family: Connection[Any]) -> None:
    parents = hostile["gaps"].parents_by_any
    assert call(parents, family, ids=[None, 2, None], titles=[None, "one"]) == [1, 2]
    assert call(parents, family, ids=[None], titles=[None]) == []
    assert call(parents, family, ids=[], titles=[]) == []


def test_interval_parameter(hostile: Modules, family: Connection[Any]) -> None:
    due = hostile["gaps"].due_within
    rows = call(due, family, within=HOUR, grace_seconds=90.5)
    assert [row.id for row in rows] == [10, 11]
    assert {row.grace for row in rows} == {dt.timedelta(seconds=90.5)}
    assert all(row.due <= row.now for row in rows)
    assert call(due, family, within=-HOUR, grace_seconds=0) == []


def test_update_in_a_cte(hostile: Modules, family: Connection[Any]) -> None:
    touch = hostile["gaps"].touch_in_cte
    assert call(touch, family, delta=1, ids=[10, 11, 99]) == [(10, 6, "first"), (11, 8, None)]
    assert call(touch, family, delta=1, ids=[]) == []


def test_aggregates_of_no_rows(hostile: Modules, family: Connection[Any]) -> None:
    least = hostile["gaps"].min_without_group
    assert call(least, family, parent_id=1) == (5, 12, 2, ["first", None])
    assert call(least, family, parent_id=2) == (None, None, 0, None)


def test_scalar_subquery_of_no_rows(hostile: Modules, family: Connection[Any]) -> None:
    rows = call(hostile["gaps"].scalar_subquery, family)
    assert rows == [(1, 5, True, [10, 11]), (2, None, False, [])]


def test_nullif(hostile: Modules, family: Connection[Any]) -> None:
    assert call(hostile["gaps"].null_if, family) == ["one", None]


def test_system_columns_and_functions(hostile: Modules, family: Connection[Any]) -> None:
    row = call(hostile["gaps"].system_columns, family, key=7)
    assert row.ctid == "(0,1)"
    assert row.xmin < row.txid
    assert row.setting is None
    assert row.locked is True
    assert len(row.digest) == 32
    assert row.pid == family.info.backend_pid


def test_one_distinguishes_no_row_from_a_row(hostile: Modules, family: Connection[Any]) -> None:
    gaps = hostile["gaps"]
    assert call(gaps.add_parent, family, id=1, title="again", alias=None, nick=None) is None
    assert call(gaps.alias_of, family, id=1) is None
    assert call(gaps.alias_of, family, id=404) is None
    assert call(gaps.min_without_group, family, parent_id=404) is not None


def test_exec_and_execrows(hostile: Modules, family: Connection[Any]) -> None:
    gaps = hostile["gaps"]
    assert call(gaps.drop_children, family, ids=[10, 99]) is None
    assert call(gaps.parents_by_any, family, ids=[], titles=[]) == []
    added = call(gaps.add_children, family, ids=[], parent_ids=[], amounts=[], notes=[])
    assert added == 0
    assert call(gaps.touch_in_cte, family, delta=0, ids=[10, 11]) == [(11, 7, None)]


def test_pipeline_mode(hostile: Modules, family: Connection[Any]) -> None:
    gaps = hostile["gaps"]
    with family.pipeline():
        call(gaps.drop_children, family, ids=[10])
        added = call(
            gaps.add_children, family, ids=[12, 13], parent_ids=[1, 1], amounts=[1, 2],
            notes=[None, None],
        )  # fmt: skip
        assert added == 2
        assert call(gaps.parents_by_any, family, ids=[1], titles=[]) == [1]
        assert call(gaps.alias_of, family, id=1) is None
        assert [row.id for row in call(gaps.touch_in_cte, family, delta=0, ids=[10, 12])] == [12]


async def test_pipeline_mode_asynchronously(
    hostile: Modules, family: Connection[Any], aconn: AsyncConnection[Any]
) -> None:
    add = hostile["gaps"].add_children_async
    async with aconn.pipeline():
        added = await add(aconn, ids=[12], parent_ids=[1], amounts=[1], notes=[None])
        assert added == 1
    assert len(hostile["gaps"].due_within(family, within=HOUR, grace_seconds=0)) == 3


def test_parameters_go_where_their_names_are(hostile: Modules, family: Connection[Any]) -> None:
    change = hostile["gaps"].reordered_parameters
    assert call(change, family, id=10, expected=4, amount=1, note="n") is None
    assert call(change, family, id=10, expected=5, amount=1, note="n") == (10, 1, "n10")


def test_utility_statements(hostile: Modules, fx: Connection[Any]) -> None:
    gaps = hostile["gaps"]
    call(gaps.listen_fx, fx)
    call(gaps.notify_fx, fx, payload="hello")
    assert [(note.channel, note.payload) for note in fx.notifies(timeout=5, stop_after=1)] == [
        ("fx", "hello")
    ]
    with fx.transaction():
        call(gaps.set_lock_timeout, fx, milliseconds=1234)
        assert fx.execute("show lock_timeout").fetchone() == ("1234ms",)


async def test_the_asynchronous_half_answers_alike(
    hostile: Modules, family: Connection[Any], aconn: AsyncConnection[Any]
) -> None:
    gaps = hostile["gaps"]
    for name, arguments in (
        ("left_join_subselect", {}),
        ("parents_by_any", {"ids": [None, 2], "titles": ["one"]}),
        ("min_without_group", {"parent_id": 2}),
        ("alias_of", {"id": 404}),
        ("touch_in_cte", {"delta": 0, "ids": [10]}),
        ("drop_children", {"ids": [999]}),
        ("add_children", {"ids": [], "parent_ids": [], "amounts": [], "notes": []}),
    ):
        twin = getattr(gaps, f"{name}_async")
        result = await twin(aconn, **arguments)
        assert strictly(twin, result) == result
        assert result == getattr(gaps, name)(family, **arguments)


def test_an_untrue_type_would_be_seen(hostile: Modules, family: Connection[Any]) -> None:
    """The check of all tests above can fail: a null under a type that denies it."""
    gaps = hostile["gaps"]

    def claims() -> list[int]:
        raise AssertionError("never called")

    with pytest.raises(ValidationError):
        strictly(claims, [row.total for row in gaps.left_join_subselect(family)])


def test_words_with_hostile_names(hostile: Modules, fx: Connection[Any]) -> None:
    words = hostile["words"]
    given: dict[str, Any] = {
        "class_": "%cla%",
        "from_": None,
        "import_": -1,
        "type": "t",
        "None_": True,
        "order": 3,
        "cur_": "2",
        "int_": None,
        "date": dt.date(2024, 2, 29),
        "conn_": "c",
    }
    assert call(words.put_word, fx, id=1, **given) == 1
    assert call(words.put_word, fx, id=1, **given) == 0
    row = call(words.get_word, fx, id=1)
    assert row == (
        *(1, "%cla%", None, -1, "t", True, 3, "2", None, dt.date(2024, 2, 29)),
        *(None, None, "c", None, None),
    )
    assert row._fields == (
        *("id", "class_", "from_", "import_", "type", "None_", "order", "column_2nd", "int_"),
        *("date", "uuid", "self", "conn_", "Mixed_Case", "größe"),
    )
    assert call(words.get_word, fx, id=2) is None


def test_text_is_sent_verbatim(hostile: Modules, fx: Connection[Any]) -> None:
    words = hostile["words"]
    call(words.put_word, fx, id=1, class_="100% cla?s $1", from_=None, import_=0, type=None,
         None_=None, order=0, cur_=None, int_=None, date=None, conn_=None)  # fmt: skip
    assert call(words.words_like, fx) == [1]
    said = 'it\'s 100% "quoted" \\ and $1, @name or ?'
    dollar = "a \"dollar\" '%' quoted $2 string"
    assert call(words.words_between, fx, prefix="100") == [(1, said, dollar)]
    assert call(words.words_between, fx, prefix="200") == []

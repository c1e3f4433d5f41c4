"""Declaring a job: what is refused, by which name, and what the handle then says."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import gc
import importlib
import inspect
import json
import math
import pickle
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Optional

import pytest
from pydantic import BaseModel

import jobs
from jobs.definition import KEY_LIMIT, NAME_LIMIT
from jobs.errors import (
    DeclarationError,
    DuplicateName,
    IdempotencyRequired,
    InvalidInput,
    PayloadUnreadable,
    TenantRequired,
)

if TYPE_CHECKING:
    from jobs import Run as TypedRun


class Order(BaseModel):
    number: int
    tenant: Any = "acme"
    key: Any = "k"


def declare(**changes: Any) -> Callable[[Any], jobs.JobHandle[Any]]:
    settings = {"tenant": jobs.NO_TENANT, "idempotency_key": jobs.NO_KEY} | changes
    return jobs.job(**settings)


@jobs.job(tenant=lambda order: order.tenant, idempotency_key=lambda order: order.key)
async def ship(input: Order, run: jobs.Run) -> None:
    """Ship an order."""


@declare()
def count(input: Order) -> None: ...


# --- the handle


def test_defaults_are_the_documented_ones() -> None:
    assert (ship.name, ship.queue, ship.priority, ship.timeout) == ("ship", "default", 0, None)
    assert ship.retry == jobs.Retry()
    assert ship.idempotency_scope == "live"


def test_the_handle_says_what_its_function_takes() -> None:
    assert (ship.input_type, ship.is_async, ship.takes_run) == (Order, True, True)
    assert (count.input_type, count.is_async, count.takes_run) == (Order, False, False)
    assert inspect.iscoroutinefunction(ship.fn)
    assert ship.__doc__ == "Ship an order."


def test_a_handle_cannot_be_made_by_hand_nor_changed() -> None:
    facts = {f.name: getattr(count, f.name) for f in dataclasses.fields(count) if f.init}
    with pytest.raises(DeclarationError, match="made by hand"):
        jobs.JobHandle(**facts, proof=None)
    with pytest.raises(AttributeError):
        count.name = "other"  # type: ignore[misc]


def test_copies_and_pickles_are_the_handle_itself() -> None:
    assert copy.copy(ship) is ship
    assert copy.deepcopy({"job": ship})["job"] is ship
    assert pickle.loads(pickle.dumps(ship)) is ship


def test_description_is_plain_json() -> None:
    @declare(
        name="described",
        queue="mail",
        idempotency_key=lambda _: "k",
        idempotency_scope="waiting",
        timeout=timedelta(minutes=5),
        priority=2,
        retry=jobs.Retry(attempts=5, backoff="linear"),
    )
    def described(input: Order) -> None: ...

    shown = described.describe()
    assert json.loads(json.dumps(shown)) == shown
    assert shown["input"] == Order.model_json_schema()
    del shown["input"]
    assert shown == {
        "name": "described",
        "queue": "mail",
        "retry": jobs.Retry(attempts=5, backoff="linear").describe(),
        "executor": "thread",
        "timeout": 300.0,
        "priority": 2,
        "idempotent": True,
        "idempotency_scope": "waiting",
        "require_transaction": False,
        "errors": {},
        "on_settled": False,
        "concurrency": None,
    }
    assert count.describe()["idempotent"] is False


def test_a_model_without_a_schema_is_described_as_anything() -> None:
    class Odd(BaseModel):
        call: Callable[[], int]

    @declare()
    def odd(input: Odd) -> None: ...

    assert odd.describe()["input"] == {}


def test_parse_gives_the_model_or_says_where_it_does_not_fit() -> None:
    assert ship.parse('{"number": 3}') == Order(number=3)
    with pytest.raises(PayloadUnreadable, match=r"input\.number"):
        ship.parse('{"nummer": 3}')


# --- tenant and key


def test_tenant_and_key_come_from_the_input() -> None:
    order = Order(number=1, tenant="t", key="k1")
    assert (ship.derive_tenant(order), ship.derive_key(order)) == ("t", "k1")
    assert (count.derive_tenant(order), count.derive_key(order)) == (None, None)


@pytest.mark.parametrize("empty", ["", None])
def test_an_empty_tenant_or_key_is_refused(empty: str | None) -> None:
    with pytest.raises(TenantRequired, match="tenant"):
        ship.derive_tenant(Order(number=1, tenant=empty))
    with pytest.raises(IdempotencyRequired, match="idempotency_key"):
        ship.derive_key(Order(number=1, key=empty))


@pytest.mark.parametrize("bad", [7, b"x", "a\x00b", "\ud800"])
def test_a_tenant_or_key_that_cannot_be_stored_is_refused(bad: object) -> None:
    with pytest.raises(InvalidInput) as tenant:
        ship.derive_tenant(Order.model_construct(number=1, tenant=bad))
    with pytest.raises(InvalidInput) as key:
        ship.derive_key(Order.model_construct(number=1, key=bad))
    assert (tenant.value.field, key.value.field) == ("tenant", "idempotency_key")


def test_o17_limits_are_named_in_bytes() -> None:
    for sound in ("é" * 127, "a" * NAME_LIMIT):
        assert ship.derive_tenant(Order(number=1, tenant=sound)) == sound
    with pytest.raises(InvalidInput, match="256 bytes of UTF-8, and the limit is 255"):
        ship.derive_tenant(Order(number=1, tenant="é" * 128))
    assert ship.derive_key(Order(number=1, key="a" * KEY_LIMIT))
    with pytest.raises(InvalidInput, match="16,388 bytes of UTF-8, and the limit is 16,384"):
        ship.derive_key(Order(number=1, key="\U0001f600" * 4097))


class Plan(str, enum.Enum):  # noqa: UP042  (the older spelling is the one that is tested)
    """What str() and format() show by name, unlike an enum.StrEnum."""

    GOLD = "gold"


def test_a_member_of_an_enum_counts_as_its_value_wherever_a_text_is_taken() -> None:
    @declare(
        name=Plan.GOLD,
        queue=Plan.GOLD,
        tenant=lambda _: Plan.GOLD,
        idempotency_key=lambda _: Plan.GOLD,
        concurrency=jobs.Concurrency(limit=1, key=lambda _: Plan.GOLD),
    )
    def fn(input: Order) -> None: ...

    order = Order(number=1)
    texts = [fn.name, fn.queue, fn.derive_tenant(order), fn.derive_key(order)]
    assert [(type(text), text) for text in texts] == [(str, "gold")] * 4
    assert fn.derive_concurrency_key(order) == "key:gold:gold"
    assert f"{fn!r}".startswith("<job 'gold' in queue 'gold'")

    @declare(name=Plan.GOLD.value.upper(), concurrency=3)
    def limited(input: Order) -> None: ...

    assert limited.derive_concurrency_key(order) == "job:GOLD"


def test_a_function_that_raises_is_named() -> None:
    @declare(tenant=lambda order: order.missing)
    def broken(input: Order) -> None: ...

    with pytest.raises(InvalidInput, match=r"tenant: .*'broken' raised AttributeError") as caught:
        broken.derive_tenant(Order(number=1))
    assert isinstance(caught.value.__cause__, AttributeError)


# --- arguments


def test_tenant_and_key_have_no_default() -> None:
    with pytest.raises(TenantRequired):
        jobs.job(idempotency_key=jobs.NO_KEY)  # type: ignore[call-arg]
    with pytest.raises(IdempotencyRequired):
        jobs.job(tenant=jobs.NO_TENANT)  # type: ignore[call-arg]
    with pytest.raises(TenantRequired, match="without arguments"):
        jobs.job(ship.fn)  # type: ignore[call-arg]


async def an_async_function(order: Order) -> str:
    return str(order.key)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tenant", "acme"),
        ("tenant", None),
        ("tenant", jobs.NO_KEY),
        ("tenant", an_async_function),
        ("tenant", lambda: "acme"),
        ("tenant", lambda one, other: f"{one}{other}"),
        ("idempotency_key", "key"),
        ("idempotency_key", None),
        ("idempotency_key", jobs.NO_TENANT),
        ("idempotency_key", an_async_function),
        ("idempotency_key", lambda: "key"),
        ("queue", ""),
        ("queue", None),
        ("queue", b"mail"),
        ("queue", "a\x00"),
        ("queue", "\ud800"),
        ("queue", "a" * 256),
        ("queue", "é" * 128),
        ("name", ""),
        ("name", 7),
        ("name", "a\x00"),
        ("name", "\udfff"),
        ("name", "\U0001f600" * 64),
        ("idempotency_scope", "running"),
        ("idempotency_scope", None),
        ("idempotency_scope", "waiting"),  # without a key
        ("retry", 3),
        ("retry", {"attempts": 3}),
        ("timeout", 30),
        ("timeout", math.inf),
        ("timeout", timedelta()),
        ("timeout", timedelta(seconds=-1)),
        ("timeout", timedelta.max),
        ("priority", 4),
        ("priority", -1),
        ("priority", True),
        ("priority", 1.0),
        ("priority", None),
    ],
)
def test_a_bad_argument_is_refused_by_name_before_anything_is_declared(
    name: str, value: object
) -> None:
    with pytest.raises(DeclarationError) as caught:
        declare(**{name: value})
    assert caught.value.cause.startswith(f"{name}: ")
    assert caught.value.code == "JOB_DECLARATION_INVALID"


def test_o17_o25_long_names_and_queues_are_taken_up_to_the_limit_in_bytes() -> None:
    for sound in ("a" * 255, "é" * 127, "\U0001f600" * 63):

        @declare(name=sound, queue=sound)
        def long(input: Order) -> None: ...

        assert (long.name, long.queue) == (sound, sound)
    with pytest.raises(DeclarationError, match="256 bytes of UTF-8, and the limit is 255"):
        declare(queue="a" * 256)


def test_functions_of_any_kind_that_take_the_input_will_do() -> None:
    class Keys:
        def tenant(self, order: Order) -> str:
            return str(order.number)

    @declare(tenant=Keys().tenant, idempotency_key=functools.partial(str.format, "{0.number}"))
    def partly(input: Order) -> None: ...

    assert partly.derive_tenant(Order(number=5)) == "5"
    declare(tenant=str, idempotency_key=repr)


# --- the job function


def test_functions_that_could_not_run_are_refused() -> None:
    def nothing() -> None: ...
    def three(input: Order, run: jobs.Run, more: int) -> None: ...
    def keyword(input: Order, *, run: jobs.Run) -> None: ...
    def several(*inputs: Order) -> None: ...
    def bare(input) -> None: ...  # type: ignore[no-untyped-def]
    def plain(input: dict[str, int]) -> None: ...
    def optional(input: Optional[Order]) -> None: ...  # noqa: UP045
    def base(input: BaseModel) -> None: ...
    def unknown(input: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037
    def other(input: Order, run: int) -> None: ...

    def yielding(input: Order) -> Iterator[int]:
        yield input.number

    async def async_yielding(input: Order) -> AsyncIterator[int]:
        yield input.number

    for fn in (nothing, three, keyword, several, bare, plain, optional, base, unknown, other):
        with pytest.raises(DeclarationError, match=fn.__name__):
            declare()(fn)
    for generator in (yielding, async_yielding):
        with pytest.raises(DeclarationError, match="yield"):
            declare()(generator)
    for thing in (3, Order, "ship"):
        with pytest.raises(DeclarationError, match="a job is a function"):
            declare()(thing)


def test_annotations_are_understood_in_any_spelling() -> None:
    class Local(BaseModel):
        value: int

    def typed_only(input: Local, run: TypedRun) -> None: ...
    def optional_run(input: Local, run: jobs.Run | None = None) -> None: ...
    def dotted(input: Local, run: "jobs.Run") -> None: ...  # noqa: UP037
    def untyped_run(input: Local, run: Any) -> None: ...
    def positional(input: Local, run: jobs.Run, /) -> None: ...

    for fn in (typed_only, optional_run, dotted, untyped_run, positional):
        handle = declare()(fn)
        assert (handle.input_type, handle.takes_run) == (Local, True)


def test_wrapped_functions_and_callable_objects() -> None:
    class Sender:
        async def __call__(self, input: Order) -> None: ...

    sender = declare(name="sender")(Sender())
    assert sender.is_async
    assert sender.input_type is Order
    with pytest.raises(DeclarationError, match="name"):
        declare()(Sender())
    assert declare(name="part")(functools.partial(Sender())).input_type is Order

    @functools.wraps(count.fn)
    def wrapper(*args: Any) -> Any:
        return count.fn(*args)

    assert declare()(wrapper).input_type is Order


# --- names


def test_a_name_stated_twice_is_refused_where_it_is_declared_again() -> None:
    @declare(name="stated twice")
    def one(input: Order) -> None: ...

    with pytest.raises(DuplicateName, match="stated twice") as caught:

        @declare(name="stated twice")
        def two(input: Order) -> None: ...

    assert "one" in caught.value.cause
    assert "two" in caught.value.cause
    assert one.name == "stated twice"


def test_unstated_names_are_compared_by_the_registry_only() -> None:
    def same(input: Order) -> None: ...

    first, second = declare()(same), declare()(same)
    assert first.name == second.name == "same"


def test_a_handle_that_is_gone_frees_its_name() -> None:
    def make(name: str) -> None:
        def fn(input: Order) -> None: ...

        fn.__qualname__ = name
        declare(name="short-lived")(fn)

    make("one")
    gc.collect()
    make("two")


MODULE = """
import jobs
from pydantic import BaseModel

class Input(BaseModel):
    value: int

@jobs.job(name="app.reloaded", tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
def reloaded(input: Input) -> None: ...
"""


def test_declaring_a_cell_of_a_notebook_again_is_no_duplicate() -> None:
    notebook = ModuleType("__main__")
    handles = []
    for cell in (1, 2):
        source = MODULE.replace("app.reloaded", "app.cell")
        exec(compile(source, f"<cell {cell}>", "exec"), vars(notebook))
        handles.append(notebook.reloaded)
    assert handles[0] is not handles[1]


def test_reloading_a_module_and_importing_its_file_twice_is_no_duplicate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reloadable_declarations.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("reloadable_declarations")
    try:
        first = module.reloaded
        assert importlib.reload(module).reloaded is not first
        # As `python reloadable_declarations.py` does when something imports it again.
        code = compile(MODULE, str(tmp_path / "reloadable_declarations.py"), "exec")
        main = ModuleType("__main__")
        exec(code, vars(main))
        assert main.reloaded.name == module.reloaded.name == "app.reloaded"
    finally:
        del sys.modules["reloadable_declarations"]

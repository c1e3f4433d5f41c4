"""The decorator that declares a task: when it is due, and what it enqueues then."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import InitVar, dataclass
from datetime import datetime, timedelta
from typing import Any, Final, cast, final, overload
from weakref import WeakValueDictionary

from psycopg import AsyncConnection, Connection

from jobs.callables import is_asynchronous
from jobs.definition import NAME_LIMIT
from jobs.enqueue import Enqueued, enqueue_one
from jobs.errors import ConnectionUnsupported, DeclarationError, DuplicateName, ScheduleInvalid
from jobs.firing import Entry, Shot, checked, shots
from jobs.flavour import Plan
from jobs.options import type_name
from jobs.payload import text_problem
from jobs.sending import Guard, send, send_async
from jobs.timetable import CATCH_UPS, CatchUp, Timetable, make, upcoming

DEFAULT_CATCH_UP: Final = "skip"
DEFAULT_MAX_CATCH_UP: Final = 10
MOST_CATCH_UP: Final = 10_000

_BUILDER: Final = object()
# Names that a declaration states, as for jobs.
_stated: WeakValueDictionary[str, TaskHandle] = WeakValueDictionary()


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class TaskHandle:
    """A declared task. Made by the decorator `jobs.task` and by nothing else.

    Attributes:
        name: Under which its schedule is kept in the database.
        fn: The decorated function.
        takes_occurrence: Whether ``fn`` takes the occurrence.
        table: When it is due.
        catch_up: What becomes of missed occurrences: ``"skip"``, ``"run_once"`` or ``"run_all"``.
        max_catch_up: How many missed occurrences ``"run_all"`` fires at most.
        name_stated: Whether the declaration states the name.
    """

    name: str
    fn: Callable[..., Iterable[Entry]]
    takes_occurrence: bool
    table: Timetable
    catch_up: CatchUp
    max_catch_up: int
    name_stated: bool
    proof: InitVar[object]

    def __post_init__(self, proof: object) -> None:
        if proof is not _BUILDER:
            raise DeclarationError(
                "a TaskHandle was made by hand", fix="Declare tasks with the decorator jobs.task."
            )
        for name, default in (("__doc__", None), ("__module__", None), ("__qualname__", self.name)):
            object.__setattr__(self, name, getattr(self.fn, name, default))

    def __repr__(self) -> str:
        said = self.table.describe()
        when = said["cron"] or f"every {said['every']} s"
        return f"<task {self.name!r}: {when} {said['tz']}>"

    def __reduce__(self) -> str:
        return str(vars(self)["__qualname__"])  # copied as itself

    def next(self, after: datetime, n: int = 1) -> list[datetime]:
        """The next ``n`` occurrences later than ``after``, in the zone of the task.

        Args:
            after: An instant from 1900 to 3000, with a time zone.
            n: 0 to 10,000.

        Raises:
            InvalidInput: An argument is out of bounds.
        """
        return upcoming(self.table, after, n)

    def entries(self, occurrence: datetime) -> list[Entry]:
        """What the task enqueues for an occurrence: pairs of a job and its input, in order.

        Calls the function; changes nothing else.

        Args:
            occurrence: The instant to give to the function, in the zone of the task.

        Raises:
            InvalidInput: ``occurrence`` has no time zone, or the function yields something else
                than such pairs, or more than 10,000.
            Whatever the function raises.
        """
        if not isinstance(occurrence, datetime) or occurrence.utcoffset() is None:
            upcoming(self.table, occurrence, 0)  # says what is wrong with it
        given = (occurrence.astimezone(self.table.tz),) if self.takes_occurrence else ()
        return checked(self.fn(*given))

    @overload
    def fire(
        self,
        conn: Connection[Any],
        *,
        occurrence: datetime | None = None,
        enqueued_by: str | None = None,
    ) -> list[Enqueued]: ...

    @overload
    def fire(
        self,
        conn: AsyncConnection[Any],
        *,
        occurrence: datetime | None = None,
        enqueued_by: str | None = None,
    ) -> Coroutine[Any, Any, list[Enqueued]]: ...

    def fire(
        self,
        conn: Connection[Any] | AsyncConnection[Any],
        *,
        occurrence: datetime | None = None,
        enqueued_by: str | None = None,
    ) -> list[Enqueued] | Coroutine[Any, Any, list[Enqueued]]:
        """Enqueue now what the task enqueues, by hand, in the transaction of ``conn``.

        Each job has its plain idempotency key, as if it were enqueued by itself, so that a fire by
        hand and a scheduled one never hide each other. The schedule is not touched: the next
        occurrence fires as it would have.

        Args:
            conn: Any psycopg 3 connection. A synchronous one returns the answers, an asynchronous
                one an awaitable of them.
            occurrence: What to give to the function; the present by default.
            enqueued_by: Who asks, for audit; at most 1,024 bytes.

        Returns:
            One answer for each entry, in order; all of them are enqueued or none.

        Raises as `JobHandle.enqueue` (the error's ``index`` says which entry), and whatever the
        function raises.
        """

        def prepare() -> list[Shot]:
            at = datetime.now(self.table.tz) if occurrence is None else occurrence
            return shots(self.entries(at), scope=None, enqueued_by=enqueued_by)

        if isinstance(conn, Connection):
            all_of_it = prepare()
            return send(conn, lambda: _one_by_one(all_of_it), _guard(all_of_it))
        if isinstance(conn, AsyncConnection):
            return _fire_async(conn, prepare)
        raise ConnectionUnsupported(
            f"tasks are fired on a psycopg 3 connection, and a {type_name(conn)} was given"
        )

    def describe(self) -> dict[str, Any]:
        """What was declared as plain JSON values, durations in seconds.

        ``jobs`` are the names of the jobs that the next occurrence enqueues, in their order: it
        calls the function, and raises what that raises.
        """
        following = self.next(datetime.now(self.table.tz))[0]
        names = [handle.name for handle, _ in self.entries(following)]
        return {"name": self.name, **self.definition(), "jobs": list(dict.fromkeys(names))}

    def definition(self) -> dict[str, Any]:
        """When the task is due and how it catches up, as plain JSON values."""
        return {
            **self.table.describe(),
            "catch_up": self.catch_up,
            "max_catch_up": self.max_catch_up,
        }


def _guard(all_of_it: list[Shot]) -> Guard:
    alone = len(all_of_it) == 1 and not all_of_it[0].row.supplied
    return Guard.NONE if alone or not all_of_it else Guard.TRANSACTION


def _one_by_one(all_of_it: list[Shot]) -> Plan[list[Enqueued]]:
    answers = []
    for target, row in all_of_it:
        answers.append((yield from enqueue_one(target, row)))
    return answers


async def _fire_async(
    conn: AsyncConnection[Any], prepare: Callable[[], list[Shot]]
) -> list[Enqueued]:
    all_of_it = prepare()
    return await send_async(conn, lambda: _one_by_one(all_of_it), _guard(all_of_it))


class TaskDeclaration:
    """What ``jobs.task(...)`` returns: decorates the function of the task."""

    def __init__(
        self, name: str | None, table: Timetable, catch_up: CatchUp, max_catch_up: int
    ) -> None:
        self._name = name
        self._table = table
        self._catch_up = catch_up
        self._max_catch_up = max_catch_up

    @overload
    def __call__(self, fn: Callable[[], Iterable[Entry]]) -> TaskHandle: ...
    @overload
    def __call__(self, fn: Callable[[datetime], Iterable[Entry]]) -> TaskHandle: ...
    def __call__(self, fn: Callable[..., Iterable[Entry]]) -> TaskHandle:
        """Return the handle of the task whose jobs ``fn`` yields. Raises DeclarationError."""
        takes_occurrence = _signature(fn)
        name = getattr(fn, "__name__", "") if self._name is None else self._name
        check_name(name)
        handle = TaskHandle(
            name=name,
            fn=fn,
            takes_occurrence=takes_occurrence,
            table=self._table,
            catch_up=self._catch_up,
            max_catch_up=self._max_catch_up,
            name_stated=self._name is not None,
            proof=_BUILDER,
        )
        if handle.name_stated:
            _claim_name(handle)
        return handle


def task(
    *,
    cron: str | None = None,
    tz: str | None = None,
    every: timedelta | None = None,
    anchor: datetime | None = None,
    name: str | None = None,
    catch_up: CatchUp = "skip",
    max_catch_up: int = DEFAULT_MAX_CATCH_UP,
) -> TaskDeclaration:
    """Declare a task: decorates a function that yields pairs of a job and its input.

    The function may take one argument, the occurrence: an aware datetime in the zone. It says what
    to enqueue and does nothing itself; it is called again where a fire failed. A scheduler fires
    it: see `jobs.Scheduler`.

    Args:
        cron: Five fields (minute, hour, day of month, month, day of week) or one of @hourly,
            @daily, @midnight, @weekly, @monthly, @yearly, @annually. See docs/schedules.md.
        tz: The zone whose clocks the cron expression goes by: a name of the IANA database such as
            ``"Europe/Zurich"``, or ``"UTC"``. There is no default.
        every: Instead of cron: the time between two occurrences, from 1 second to 3,650 days.
            ``tz`` is then the zone of the occurrence that the function is given, UTC by default.
        anchor: An occurrence from which ``every`` is counted; by default 1970-01-01T00:00Z.
        name: Under which the schedule is kept, at most 255 bytes; by default the function's name.
        catch_up: What becomes of occurrences that were missed. ``"skip"`` fires the latest and
            drops those before; ``"run_once"`` fires once, for the earliest; ``"run_all"`` fires
            the oldest, up to ``max_catch_up``, each for itself.
        max_catch_up: 1 to 10,000.

    Returns:
        A decorator that returns a `TaskHandle`.

    Raises:
        ScheduleInvalid: Cron, zone, interval or catch-up cannot be; the message names the field.
        DuplicateName: Another declaration states the same name.
        DeclarationError: The name or the function cannot be used.
    """
    table = make(cron=cron, every=every, tz=tz, anchor=anchor)
    if name is not None:
        check_name(name)
    check_catch_up(catch_up, max_catch_up)
    return TaskDeclaration(name, table, catch_up, max_catch_up)


def check_name(name: object) -> None:
    """Refuse what cannot be the name of a task (DeclarationError)."""
    problem = text_problem(name, NAME_LIMIT)
    if problem is not None:
        raise DeclarationError(f"name: {problem}")


def check_catch_up(catch_up: object, max_catch_up: object) -> CatchUp:
    """Refuse an unknown policy or an impossible cap (ScheduleInvalid)."""
    if catch_up not in CATCH_UPS:
        raise ScheduleInvalid(
            f"must be 'skip', 'run_once' or 'run_all', and is {catch_up!r:.100}", field="catch_up"
        )
    if type(max_catch_up) is not int or not 1 <= max_catch_up <= MOST_CATCH_UP:
        raise ScheduleInvalid(
            f"must be a whole number from 1 to {MOST_CATCH_UP:,}, and is {max_catch_up!r:.100}",
            field="max_catch_up",
        )
    return cast(CatchUp, catch_up)


def _signature(fn: object) -> bool:
    """Whether the function takes the occurrence."""
    if not callable(fn) or isinstance(fn, type):
        raise DeclarationError(f"a task is a function, and a {type_name(fn)} was decorated")
    who = f"task function {getattr(fn, '__name__', type_name(fn))!r}"
    if is_asynchronous(fn) or any(map(inspect.isasyncgenfunction, (fn, type(fn).__call__))):
        raise DeclarationError(
            f"{who} is asynchronous: it only says what to enqueue",
            fix="Make it a plain function, and do the work in a job that it yields.",
        )
    parameters = list(inspect.signature(fn).parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(parameters) > 1 or any(one.kind not in positional for one in parameters):
        raise DeclarationError(f"{who} must take nothing, or the occurrence as its one parameter")
    return bool(parameters)


def _claim_name(handle: TaskHandle) -> None:
    other = _stated.get(handle.name)
    if other is not None and place(other) != place(handle):
        raise DuplicateName(
            f"name: {handle.name!r} is stated by {place(other)} and by {place(handle)}"
        )
    _stated[handle.name] = handle


def place(handle: TaskHandle) -> str:
    """Return where a task is declared, for messages."""
    return f"{handle.fn.__module__}.{getattr(handle.fn, '__qualname__', handle.name)}"

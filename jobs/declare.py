"""The decorator that declares a job. Whatever could only fail later is refused here."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any, Final, ForwardRef, Protocol, TypeVar, get_args, overload
from weakref import WeakValueDictionary

from pydantic import BaseModel

from jobs.callables import is_asynchronous, takes_one
from jobs.classify import NO_RULES, ErrorRules, checked_rules
from jobs.concurrency import Concurrency, checked_concurrency
from jobs.definition import (
    NAME_LIMIT,
    NO_KEY,
    NO_TENANT,
    Item,
    KeyOf,
    NoKey,
    NoTenant,
    R,
    Scope,
    TenantOf,
    Where,
)
from jobs.errors import DeclarationError, DuplicateName, IdempotencyRequired, TenantRequired
from jobs.handle import BUILDER, JobHandle
from jobs.hooks import Hook, checked_hook
from jobs.options import PRIORITIES, type_name
from jobs.payload import plain_text, text_problem
from jobs.results import ResultCodec
from jobs.retry import LONGEST, Retry

__all__ = ["NO_KEY", "NO_TENANT", "Item", "JobHandle", "NoKey", "NoTenant", "job"]

M = TypeVar("M", bound=BaseModel)

DEFAULT_QUEUE: Final = "default"
DEFAULT_RETRY: Final = Retry()

_MISSING: Final[Any] = object()

# Names that a declaration states, so that a second one is refused where it is declared. A handle
# that nobody holds any more frees its name.
_stated: WeakValueDictionary[str, JobHandle[Any]] = WeakValueDictionary()


class Declaration:
    """What ``jobs.job(...)`` returns: decorates the job function."""

    def __init__(
        self,
        *,
        queue: str,
        name: str | None,
        tenant: TenantOf,
        idempotency_key: KeyOf,
        idempotency_scope: Scope,
        retry: Retry,
        timeout: timedelta | None,
        priority: int,
        require_transaction: bool,
        executor: Where | None,
        errors: ErrorRules,
        on_settled: Hook | None,
        concurrency: Concurrency | None,
    ) -> None:
        self._name = name
        self._executor = executor
        self._settings: dict[str, Any] = {
            "queue": queue,
            "tenant": tenant,
            "idempotency_key": idempotency_key,
            "idempotency_scope": idempotency_scope,
            "retry": retry,
            "timeout": timeout,
            "priority": priority,
            "require_transaction": require_transaction,
            "errors": errors,
            "on_settled": on_settled,
            "concurrency": concurrency,
        }

    @overload
    def __call__(self, fn: Callable[[M], Coroutine[Any, Any, R]]) -> JobHandle[M, R]: ...
    @overload
    def __call__(self, fn: Callable[[M, Any], Coroutine[Any, Any, R]]) -> JobHandle[M, R]: ...
    @overload
    def __call__(self, fn: Callable[[M], R]) -> JobHandle[M, R]: ...
    @overload
    def __call__(self, fn: Callable[[M, Any], R]) -> JobHandle[M, R]: ...
    def __call__(self, fn: Callable[..., object]) -> JobHandle[Any]:
        """Return the handle of the job that ``fn`` does. Raises DeclarationError."""
        # The scope in which the function is declared, for models that are local to it.
        scope = sys._getframe(1).f_locals
        model, takes_run = _signature(fn, scope)
        name = self._name
        if name is None:
            name = getattr(fn, "__name__", "")
        name = _checked_text("name", name)
        handle = JobHandle(
            name=name,
            input_type=model,
            fn=fn,
            is_async=is_asynchronous(fn),
            executor=_where(fn, self._executor),
            takes_run=takes_run,
            results=_results(fn, scope),
            name_stated=self._name is not None,
            proof=BUILDER,
            **self._settings,
        )
        if handle.name_stated:
            _claim_name(handle)
        return handle


class _Job(Protocol):
    """The signature of `job` for a type checker, which so demands what has no default."""

    def __call__(
        self,
        *,
        tenant: TenantOf,
        idempotency_key: KeyOf,
        queue: str = DEFAULT_QUEUE,
        name: str | None = None,
        idempotency_scope: Scope = "live",
        retry: Retry = DEFAULT_RETRY,
        timeout: timedelta | None = None,
        priority: int = 0,
        require_transaction: bool = False,
        executor: Where | None = None,
        errors: ErrorRules = NO_RULES,
        on_settled: Hook | None = None,
        concurrency: int | Concurrency | None = None,
    ) -> Declaration: ...


def _job(
    fn: object = None,
    /,
    *,
    tenant: TenantOf = _MISSING,
    idempotency_key: KeyOf = _MISSING,
    queue: str = DEFAULT_QUEUE,
    name: str | None = None,
    idempotency_scope: Scope = "live",
    retry: Retry = DEFAULT_RETRY,
    timeout: timedelta | None = None,
    priority: int = 0,
    require_transaction: bool = False,
    executor: Where | None = None,
    errors: ErrorRules = NO_RULES,
    on_settled: Hook | None = None,
    concurrency: int | Concurrency | None = None,
) -> Declaration:
    """Declare a job: decorates a function of its input, and optionally of its run.

    The input is annotated with a pydantic model, the run with `jobs.Run`. What the function returns
    is stored with the finished job, as the annotation of the return value says; annotated with None
    it stores nothing.

    Args:
        tenant: A function of the input that returns the tenant the job belongs to, at most 255
            bytes; or `NO_TENANT`. There is no default.
        idempotency_key: A function of the input that returns the key, at most 16,384 bytes, of
            which one job at a time exists for each tenant; or `NO_KEY`. There is no default.
        queue: Where its jobs wait.
        name: The durable routing key of its jobs, at most 255 bytes; by default the function's
            name. State it to rename the function while jobs wait.
        idempotency_scope: ``"live"``: a key is taken until its job has ended. ``"waiting"``: only
            until its job starts, so that exactly one more waits behind a running one.
        retry: What happens after a failed attempt.
        timeout: Longest duration of an attempt; None for no end.
        priority: 0 (runs first) to 3.
        require_transaction: Whether its jobs are enqueued and staged only inside a transaction; a
            call may say otherwise.
        executor: Where the function runs: ``"async"`` on the event loop, which is the default of
            asynchronous functions and theirs alone; ``"thread"``, the default of all others;
            ``"process"`` in a process of its own, for functions that compute. That one must be
            found under its name in a module that can be imported.
        errors: What errors mean for the next try, by their type: ``"terminal"``, ``"retry"``, a
            timedelta, or a function of the error that returns one of them or None. Goes before the
            rules of the registry.
        on_settled: A function of a `Settled`, called in a worker once the job has ended other than
            by a cancel; asynchronous or not. At most once: what must happen belongs into the job.
        concurrency: How many of its jobs may run at the same time in the whole fleet: a number for
            all of them, or a `Concurrency` for those of one key. None for no limit.

    Returns:
        A decorator that returns a `JobHandle`.

    Raises:
        TenantRequired, IdempotencyRequired: The argument is missing.
        DuplicateName: Another declaration states the same name.
        DeclarationError: Any other argument, or the function, could only fail later.
    """
    if fn is not None:
        raise TenantRequired("@jobs.job was used without arguments, and a job states its tenant")
    if tenant is _MISSING:
        raise TenantRequired("tenant: a job states its tenant, and this one does not")
    if idempotency_key is _MISSING:
        raise IdempotencyRequired(
            "idempotency_key: a job states its idempotency key, and this one does not"
        )
    if not isinstance(tenant, NoTenant):
        _check_function("tenant", tenant, "jobs.NO_TENANT")
    if not isinstance(idempotency_key, NoKey):
        _check_function("idempotency_key", idempotency_key, "jobs.NO_KEY")
    queue = _checked_text("queue", queue)
    if name is not None:
        name = _checked_text("name", name)
    if idempotency_scope not in ("live", "waiting"):
        raise DeclarationError(
            f"idempotency_scope: must be 'live' or 'waiting', and is {idempotency_scope!r:.200}"
        )
    if idempotency_scope == "waiting" and isinstance(idempotency_key, NoKey):
        raise DeclarationError("idempotency_scope: 'waiting' means nothing without a key")
    if not isinstance(retry, Retry):
        raise DeclarationError(f"retry: must be a jobs.Retry, and is a {type_name(retry)}")
    if timeout is not None:
        if not isinstance(timeout, timedelta):
            raise DeclarationError(f"timeout: must be a timedelta, and is a {type_name(timeout)}")
        if not timedelta() < timeout <= LONGEST:
            raise DeclarationError(
                f"timeout: must be more than 0 and at most {LONGEST.days} days, and is {timeout}"
            )
    if type(priority) is not int or priority not in PRIORITIES:
        raise DeclarationError(f"priority: must be 0, 1, 2 or 3, and is {priority!r:.200}")
    if not isinstance(require_transaction, bool):
        raise DeclarationError(
            f"require_transaction: must be True or False, and is {require_transaction!r:.200}"
        )
    if executor not in (None, "async", "thread", "process"):
        raise DeclarationError(
            f"executor: must be 'async', 'thread' or 'process', and is {executor!r:.200}"
        )
    errors = checked_rules("errors", errors)
    if on_settled is not None:
        checked_hook(on_settled)
    return Declaration(
        queue=queue,
        name=name,
        tenant=tenant,
        idempotency_key=idempotency_key,
        idempotency_scope=idempotency_scope,
        retry=retry,
        timeout=timeout,
        priority=priority,
        require_transaction=require_transaction,
        executor=executor,
        errors=errors,
        on_settled=on_settled,
        concurrency=checked_concurrency(concurrency),
    )


_job.__name__ = _job.__qualname__ = "job"
job: _Job = _job


def _checked_text(what: str, value: object) -> str:
    problem = text_problem(value, NAME_LIMIT)
    if problem is not None:
        raise DeclarationError(f"{what}: {problem}")
    return plain_text(value)


def _check_function(what: str, value: object, instead: str) -> None:
    if not callable(value):
        raise DeclarationError(
            f"{what}: must be a function of the input or {instead}, and is a {type_name(value)}"
        )
    if is_asynchronous(value):
        raise DeclarationError(f"{what}: must be a plain function, not an asynchronous one")
    if not takes_one(value):
        raise DeclarationError(f"{what}: must take the input as its one argument")


# -- the job function -----------------------------------------------------------------------------


def _signature(fn: object, scope: Mapping[str, Any]) -> tuple[type[BaseModel], bool]:
    """Return the model of the input and whether the function takes the run."""
    if not callable(fn) or isinstance(fn, type):
        raise DeclarationError(f"a job is a function, and a {type_name(fn)} was decorated")
    who = f"job function {getattr(fn, '__name__', type_name(fn))!r}"
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise DeclarationError(f"{who} contains a yield, so calling it would not run it")
    parameters = list(_parameters(fn))
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(parameters) not in (1, 2) or any(p.kind not in positional for p in parameters):
        raise DeclarationError(
            f"{who} must take one or two positional parameters, its input and optionally its run"
        )
    if len(parameters) == 2 and not _may_be_run(_resolved(fn, parameters[1].annotation, scope)):
        raise DeclarationError(
            f"{who}: the second parameter, {parameters[1].name!r}, is the run: annotate it with "
            "jobs.Run"
        )
    first = parameters[0]
    model = _resolved(fn, first.annotation, scope)
    if not (isinstance(model, type) and issubclass(model, BaseModel)) or model is BaseModel:
        found = "not annotated" if model is inspect.Parameter.empty else f"annotated with {model!r}"
        raise DeclarationError(
            f"{who}: the first parameter, {first.name!r}, is the input and must be annotated with "
            f"a pydantic model; it is {found:.200}"
        )
    return model, len(parameters) == 2


def _parameters(fn: Callable[..., object]) -> typing.Iterable[inspect.Parameter]:
    return _lazy_signature(fn).parameters.values()


def _lazy_signature(fn: Callable[..., object]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        # Annotations are evaluated lazily there, and one that is for type checkers only must not
        # be in the way.
        import annotationlib

        return inspect.signature(fn, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(fn)


def _results(fn: Callable[..., object], scope: Mapping[str, Any]) -> ResultCodec:
    """Return what stores the values that the function returns."""
    given = _lazy_signature(fn).return_annotation
    known = _resolved(fn, given, scope)
    try:
        return ResultCodec(known, lambda: _resolved(fn, given, {}))
    except DeclarationError as error:
        error.cause = f"job function {getattr(fn, '__name__', type_name(fn))!r}: {error.cause}"
        raise


def _where(fn: Callable[..., object], asked: Where | None) -> Where:
    """Return where the function runs, and refuse what could not run there."""
    who = f"job function {getattr(fn, '__name__', type_name(fn))!r}"
    if is_asynchronous(fn) != (asked == "async") and asked is not None:
        kind = "asynchronous" if is_asynchronous(fn) else "not asynchronous"
        raise DeclarationError(f"executor: {who} is {kind}, and cannot run as {asked!r}")
    if asked == "process":
        name, module = getattr(fn, "__qualname__", None), getattr(fn, "__module__", None)
        if not name or "<" in name or not module or module == "__main__":
            raise DeclarationError(
                f"executor: {who} is not found under its name in a module that another process "
                f"can import: {module}.{name}",
                fix="Declare it at the top of a module that is imported, not in a function and "
                "not in the script that is started.",
            )
    return asked or ("async" if is_asynchronous(fn) else "thread")


def _resolved(fn: object, annotation: Any, scope: Mapping[str, Any]) -> Any:
    """Evaluate an annotation that is still text, in the scope of the function's declaration."""
    text = getattr(annotation, "__forward_arg__", annotation)
    if not isinstance(text, str):
        return annotation
    bearer = types.SimpleNamespace(__annotations__={"it": text})
    try:
        return typing.get_type_hints(bearer, _globals_of(fn), dict(scope))["it"]
    except Exception:
        return annotation


def _globals_of(fn: Any) -> dict[str, Any]:
    fn = inspect.unwrap(fn)
    while isinstance(fn, functools.partial):
        fn = fn.func
    if not hasattr(fn, "__globals__"):
        fn = type(fn).__call__
    found: dict[str, Any] = getattr(fn, "__globals__", {})
    return found


def _may_be_run(annotation: Any) -> bool:
    """Whether an annotation can mean jobs.Run, which this module must not import."""
    if annotation in (inspect.Parameter.empty, Any) or isinstance(annotation, (str, ForwardRef)):
        return True  # says nothing, or only to a type checker
    if isinstance(annotation, type):
        return any(base.__name__ == "Run" for base in annotation.__mro__)
    return any(_may_be_run(part) for part in get_args(annotation) if part is not type(None))


# -- names ----------------------------------------------------------------------------------------


def _claim_name(handle: JobHandle[Any]) -> None:
    other = _stated.get(handle.name)
    if other is not None and not _same_definition(other, handle):
        raise DuplicateName(
            f"name: {handle.name!r} is stated by {place(other)} and by {place(handle)}"
        )
    _stated[handle.name] = handle


def _same_definition(one: JobHandle[Any], two: JobHandle[Any]) -> bool:
    """Whether the second is the first one declared again: a reload, or a file imported twice."""
    if one.fn.__module__ == two.fn.__module__ or _file(one) == _file(two):
        return _qualname(one) == _qualname(two)
    return False


def place(handle: JobHandle[Any]) -> str:
    """Return where a job is declared, for messages."""
    return f"{handle.fn.__module__}.{_qualname(handle)}"


def _qualname(handle: JobHandle[Any]) -> str:
    return str(getattr(handle.fn, "__qualname__", handle.name))


def _file(handle: JobHandle[Any]) -> object:
    code = getattr(inspect.unwrap(handle.fn), "__code__", None)
    return getattr(code, "co_filename", handle)

"""Which jobs and tasks a process knows: collected from modules, looked up by name."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, final

from jobs.classify import NO_RULES, ErrorRules, checked_rules
from jobs.declare import JobHandle, place
from jobs.errors import ConfigError, DeclarationError, DuplicateName, ModuleShadowed
from jobs.middleware import Middleware, checked_middleware
from jobs.tasking import TaskHandle
from jobs.tasking import place as place_of_task


@final
class Registry:
    """The jobs and tasks that some modules export. Made by `Registry.of`; it never changes.

    Iteration is over the jobs, in the order of the names by code point, whatever the locale.

    Attributes:
        tasks: The tasks, in the same order.
        errors: What errors mean for the next try of any of its jobs, by their type.
        middleware: What is entered around every run of any of its jobs, the first outermost.
    """

    def __init__(
        self,
        jobs: dict[str, JobHandle[Any]],
        errors: ErrorRules = NO_RULES,
        middleware: tuple[Middleware, ...] = (),
        tasks: dict[str, TaskHandle] | None = None,
    ) -> None:
        self._jobs = {name: jobs[name] for name in sorted(jobs)}
        self._tasks = {name: (tasks or {})[name] for name in sorted(tasks or {})}
        self.tasks: tuple[TaskHandle, ...] = tuple(self._tasks.values())
        self.errors = errors
        self.middleware = middleware

    @classmethod
    def of(
        cls,
        *modules: ModuleType,
        errors: ErrorRules = NO_RULES,
        middleware: Iterable[Middleware] = (),
    ) -> Registry:
        """Collect what modules export: public names bound to a `JobHandle` or a `TaskHandle`.

        Anything else in a module is ignored. A job or task that several modules export under one
        name counts once. A job and a task may have the same name.

        Args:
            modules: Modules that declare or import jobs.
            errors: As for `jobs.job`, for all of these jobs; the rules of a job go before them.
            middleware: Functions of the run that return a context manager, entered around every run
                of these jobs, inside the middleware of the worker.

        Raises:
            DuplicateName: Two jobs, or two tasks, have one name, or one is exported under two.
            DeclarationError: Something else than a module is given, or a rule that is none.
            ConfigError: ``middleware`` is no list of functions.
        """
        errors = checked_rules("errors", errors)
        around = checked_middleware("middleware", middleware)
        exports: dict[int, tuple[str, str]] = {}
        jobs: dict[str, JobHandle[Any]] = {}
        tasks: dict[str, TaskHandle] = {}
        for module in modules:
            if not isinstance(module, ModuleType):
                raise DeclarationError(
                    f"Registry.of takes modules, and a {type(module).__qualname__} was given",
                    fix="Import the module that declares the jobs and pass the module itself.",
                )
            for export, value in list(vars(module).items()):
                if export.startswith("_"):
                    continue
                if type(value) is JobHandle:
                    _note("job", value, place(value), jobs, exports, export, module.__name__)
                elif type(value) is TaskHandle:
                    at = place_of_task(value)
                    _note("task", value, at, tasks, exports, export, module.__name__)
        return cls(jobs, errors, around, tasks)

    def get(self, name: str) -> JobHandle[Any] | None:
        """Return the job of that name, or None."""
        return self._jobs.get(name)

    def get_task(self, name: str) -> TaskHandle | None:
        """Return the task of that name, or None."""
        return self._tasks.get(name)

    def __iter__(self) -> Iterator[JobHandle[Any]]:
        return iter(self._jobs.values())

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, name: object) -> bool:
        return name in self._jobs

    def __repr__(self) -> str:
        return f"<Registry of {', '.join(self._jobs) or 'no jobs'}>"


def _note(
    kind: str,
    value: Any,
    declared_at: str,
    found: dict[str, Any],
    exports: dict[int, tuple[str, str]],
    export: str,
    module: str,
) -> None:
    """Take up one handle, unless it clashes with what has been found before (DuplicateName)."""
    earlier, where = exports.setdefault(id(value), (export, module))
    if earlier != export:
        raise DuplicateName(
            f"the {kind} {value.name!r} is exported as {where}.{earlier} and as {module}.{export}"
        )
    other = found.setdefault(value.name, value)
    if other is not value:
        at = place(other) if kind == "job" else place_of_task(other)
        raise DuplicateName(f"two {kind}s have the name {value.name!r}: {at} and {declared_at}")


def load(where: str) -> Registry:
    """Return the registry that ``module:attribute`` names, as on the command line.

    Raises:
        ModuleShadowed: The module is called ``jobs``, which is this library.
        ConfigError: There is no such module or attribute, or it is no registry. What the import
            of an existing module raises passes unchanged.
    """
    example = "for example app.background:registry"
    name, colon, attribute = where.partition(":")
    if not (name and colon and attribute) or name.startswith("."):
        raise ConfigError(f"a registry is named as module:attribute ({example}), not {where!r}")
    if name.partition(".")[0] == "jobs":
        own = find_shadowed()
        raise ModuleShadowed(
            f"{name!r} is this library" + (f", not your {own}" if own is not None else "")
        )
    try:
        value: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"there is no module {error.name!r} to load {where!r} from",
                fix="Run from the folder that holds it, or install the package that does.",
            ) from error
        raise
    try:
        for part in attribute.split("."):
            value = getattr(value, part)
    except AttributeError as error:
        raise ConfigError(
            f"module {name!r} has no {attribute!r}",
            fix=f"Write {attribute} = jobs.Registry.of(module, ...) in it.",
        ) from error
    if not isinstance(value, Registry):
        raise ConfigError(
            f"{where} is a {type(value).__qualname__} and must be a jobs.Registry",
            fix="Write registry = jobs.Registry.of(module, ...) and name that.",
        )
    return value


def find_shadowed() -> Path | None:
    """Return a module of the application that this library hides because it is called ``jobs``."""
    own = Path(__file__).resolve().parent
    for folder in dict.fromkeys([os.getcwd(), *sys.path]):
        for candidate in (Path(folder, "jobs.py"), Path(folder, "jobs", "__init__.py")):
            if candidate.is_file() and candidate.resolve().parent != own:
                return candidate
    return None

"""Which jobs and tasks a process knows: collected from modules, looked up by name."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, final

from jobs.declare import JobHandle, place
from jobs.errors import ConfigError, DeclarationError, DuplicateName, ModuleShadowed
from jobs.tasking import TaskHandle
from jobs.tasking import place as place_of_task


@final
class Registry:
    """The jobs and tasks that some modules export. Made by `Registry.of`; it never changes.

    Iteration is over the jobs, in the order of the names by code point, whatever the locale.

    Attributes:
        tasks: The tasks, in the same order.
    """

    def __init__(
        self, jobs: dict[str, JobHandle[Any]], tasks: dict[str, TaskHandle] | None = None
    ) -> None:
        self._jobs = {name: jobs[name] for name in sorted(jobs)}
        self._tasks = {name: (tasks or {})[name] for name in sorted(tasks or {})}
        self.tasks: tuple[TaskHandle, ...] = tuple(self._tasks.values())

    @classmethod
    def of(cls, *modules: ModuleType) -> Registry:
        """Collect what modules export: public names bound to a `JobHandle` or a `TaskHandle`.

        Anything else in a module is ignored. A job or task that several modules export under one
        name counts once. A job and a task may have the same name.

        Raises:
            DuplicateName: Two jobs, or two tasks, have one name, or one is exported under two.
            DeclarationError: Something else than a module is given.
        """
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
        return cls(jobs, tasks)

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

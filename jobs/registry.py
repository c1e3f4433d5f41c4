"""Which jobs a process knows: collected from modules, looked up by name."""

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


@final
class Registry:
    """The jobs that some modules export. Made by `Registry.of`; it never changes.

    Iteration is in the order of the names by code point, whatever the locale.

    Attributes:
        errors: What errors mean for the next try of any of its jobs, by their type.
        middleware: What is entered around every run of any of its jobs, the first outermost.
    """

    def __init__(
        self,
        jobs: dict[str, JobHandle[Any]],
        errors: ErrorRules = NO_RULES,
        middleware: tuple[Middleware, ...] = (),
    ) -> None:
        self._jobs = {name: jobs[name] for name in sorted(jobs)}
        self.errors = errors
        self.middleware = middleware

    @classmethod
    def of(
        cls,
        *modules: ModuleType,
        errors: ErrorRules = NO_RULES,
        middleware: Iterable[Middleware] = (),
    ) -> Registry:
        """Collect the jobs of modules: their public names that are bound to a `JobHandle`.

        Anything else in a module is ignored. A job that several modules export under one name
        counts once.

        Args:
            modules: Modules that declare or import jobs.
            errors: As for `jobs.job`, for all of these jobs; the rules of a job go before them.
            middleware: Functions of the run that return a context manager, entered around every run
                of these jobs, inside the middleware of the worker.

        Raises:
            DuplicateName: Two jobs have one name, or one job is exported under two names.
            DeclarationError: Something else than a module is given, or a rule that is none.
            ConfigError: ``middleware`` is no list of functions.
        """
        errors = checked_rules("errors", errors)
        around = checked_middleware("middleware", middleware)
        exports: dict[int, tuple[str, str]] = {}
        found: dict[str, JobHandle[Any]] = {}
        for module in modules:
            if not isinstance(module, ModuleType):
                raise DeclarationError(
                    f"Registry.of takes modules, and a {type(module).__qualname__} was given",
                    fix="Import the module that declares the jobs and pass the module itself.",
                )
            for export, value in list(vars(module).items()):
                if export.startswith("_") or type(value) is not JobHandle:
                    continue
                earlier, where = exports.setdefault(id(value), (export, module.__name__))
                if earlier != export:
                    raise DuplicateName(
                        f"the job {value.name!r} is exported as {where}.{earlier} and as "
                        f"{module.__name__}.{export}"
                    )
                other = found.setdefault(value.name, value)
                if other is not value:
                    raise DuplicateName(
                        f"two jobs have the name {value.name!r}: {place(other)} and {place(value)}"
                    )
        return cls(found, errors, around)

    def get(self, name: str) -> JobHandle[Any] | None:
        """Return the job of that name, or None."""
        return self._jobs.get(name)

    def __iter__(self) -> Iterator[JobHandle[Any]]:
        return iter(self._jobs.values())

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, name: object) -> bool:
        return name in self._jobs

    def __repr__(self) -> str:
        return f"<Registry of {', '.join(self._jobs) or 'no jobs'}>"


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

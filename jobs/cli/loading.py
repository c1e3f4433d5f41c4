"""From ``module:registry`` on a command line to a registry of jobs."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Any

from jobs.errors import ConfigError, JobsError, LoadError, ModuleShadowed
from jobs.registry import Registry, find_shadowed, load


def load_registry(target: str) -> Registry:
    """Load the registry that a command line names, the working directory searched first.

    Args:
        target: ``package.module:registry``, or ``package.module`` for the jobs that this module
            itself exports.

    Raises:
        ConfigError: Nothing importable has that name, it is no registry, or it has no jobs.
        ModuleShadowed: The application has a module called ``jobs``, which is this library.
        LoadError: Importing it raised; the exception is the ``__cause__``.
        DeclarationError: The jobs declared there clash.
    """
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        registry = load(target) if ":" in target else _registry_of(target)
    except JobsError as error:
        error.cause += _place(error)
        raise
    except ImportError as error:
        # It meant a package of the application's that the library hides.
        missing = (error.name or "").partition(".")[0]
        if missing == "jobs" and (own := find_shadowed()) is not None:
            raise ModuleShadowed(f"{error}, because jobs is this library, not {own}") from error
        raise _broken(target, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(target, error) from error
    if not len(registry) and not registry.tasks:
        raise ConfigError(
            f"{target} has no jobs",
            fix="Name the module whose functions are decorated with @jobs.job.",
        )
    return registry


def load_attribute(target: str) -> Any:
    """Load whatever ``package.module:attribute`` names, the working directory searched first.

    Raises:
        ConfigError: Nothing importable has that name.
        LoadError: Importing it raised; the exception is the ``__cause__``.
    """
    name, colon, attribute = target.partition(":")
    if not (name and colon and attribute) or not all(p.isidentifier() for p in name.split(".")):
        raise ConfigError(f"an object is named as module:attribute, not {target!r}")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        value: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"there is no module {error.name!r}",
                fix="Run from the folder that holds it, or install the package that does.",
            ) from error
        raise _broken(target, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(target, error) from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise ConfigError(f"module {name!r} has no {attribute!r}")
        value = getattr(value, part)
    return value


def _registry_of(name: str) -> Registry:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"a registry is named as module:attribute or module, not {name!r}")
    if name.partition(".")[0] == "jobs":
        load(f"{name}:registry")  # says what is wrong with that
    try:
        return Registry.of(importlib.import_module(name))
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"there is no module {error.name!r}",
                fix="Run from the folder that holds it, or install the package that does.",
            ) from error
        raise


def _broken(target: str, error: BaseException) -> LoadError:
    """Say what an import raised, and where in the application's own code."""
    where = _place(error)
    if isinstance(error, SyntaxError):
        where = f" ({error.filename}, line {error.lineno})"
    message = error.msg if isinstance(error, SyntaxError) else error
    return LoadError(
        f"importing {target.partition(':')[0]} raised {type(error).__name__}: {message}{where}"
    )


def _place(error: BaseException) -> str:
    """Where in the application an error comes from, in brackets; "" where from ours alone."""
    own = os.path.dirname(os.path.dirname(__file__)) + os.sep
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if "importlib" not in frame.filename and not frame.filename.startswith(own):
            return f" ({frame.filename}, line {frame.lineno})"
    return ""

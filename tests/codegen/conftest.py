"""The hostile fixture project, compiled once a process and installed in the test's database."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import pytest
from psycopg import AsyncConnection, Connection
from pydantic import TypeAdapter

from codegen import generate

FIXTURE = Path(__file__).parent / "fixture"
PACKAGE = Path("generated/hostile_sql")
# The fixture's modules by stem.
Modules = dict[str, ModuleType]


def compile_fixture(root: Path) -> Path:
    """Compile a copy of the fixture project in `root`; returns its generated/ folder."""
    shutil.copytree(FIXTURE, root, dirs_exist_ok=True)
    assert generate.main(["--root", str(root), "--package", str(PACKAGE)]) == 0
    return root / "generated"


@pytest.fixture(scope="session")
def hostile_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compiled copy of the fixture project."""
    root = tmp_path_factory.mktemp("hostile")
    compile_fixture(root)
    return root


@pytest.fixture(scope="session")
def hostile(hostile_root: Path) -> Iterator[Modules]:
    """The fixture's generated modules, imported."""
    sys.path.insert(0, str(hostile_root / "generated"))
    try:
        names = ("words", "kinds", "gaps", "enums", "_registry", "_encode", "_rows", "_copying")
        yield {name: importlib.import_module(f"hostile_sql.{name}") for name in names}
    finally:
        sys.path.remove(str(hostile_root / "generated"))
        for name in [name for name in sys.modules if name.split(".")[0] == "hostile_sql"]:
            del sys.modules[name]


@pytest.fixture
def fx(conn: Connection[Any]) -> Connection[Any]:
    """A session on a database that has the fixture's schema."""
    for file in sorted((FIXTURE / "schema").glob("*.sql")):
        conn.execute(file.read_bytes())
    return conn


@pytest.fixture
async def afx(fx: Connection[Any], aconn: AsyncConnection[Any]) -> AsyncConnection[Any]:
    """An asynchronous session on the database that `fx` prepared."""
    assert not fx.closed
    return aconn


def strictly(function: Callable[..., Any], result: Any) -> Any:
    """Validate a result against the function's return annotation, without any coercion."""
    annotation = get_type_hints(function)["return"]
    return TypeAdapter(annotation).validate_python(result, strict=True)


def call(function: Callable[..., Any], conn: Connection[Any], *args: Any, **kwargs: Any) -> Any:
    """Call a generated function and hold its result against its annotation, value for value."""
    result = function(conn, *args, **kwargs)
    assert strictly(function, result) == result
    return result

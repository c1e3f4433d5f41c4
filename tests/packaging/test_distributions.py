"""What is published works where nothing else of this repository is."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tarfile
import textwrap
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from jobs.migrate import check, migrate
from tests.support.server import ROOT, Clones

APP = textwrap.dedent(
    """
    import sys

    import jobs
    from pydantic import BaseModel


    class Greet(BaseModel):
        name: str


    @jobs.job(tenant=jobs.NO_TENANT, idempotency_key=lambda i: i.name)
    def greet(input: Greet, run: jobs.Run) -> None:
        print(f"hello {input.name} in attempt {run.attempt}", file=sys.stderr)
    """
)
ENQUEUE = textwrap.dedent(
    """
    import os, psycopg
    from app import Greet, greet

    with psycopg.connect(os.environ["JOBS_DSN"]) as conn:
        assert greet.enqueue(conn, Greet(name="world")).created
    """
)


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    """Run a command without any of this repository on its paths; return what it wrote."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PG", "VIRTUAL"))}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=clean | env, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of the tree as it is."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", out, cwd=ROOT)
    return out


@pytest.fixture
def empty(clones: Clones) -> Iterator[str]:
    """DSN of a database without our schema."""
    name = f"{clones.prefix}_{secrets.token_hex(4)}"
    with psycopg.connect(clones.dsn("postgres"), autocommit=True) as admin:
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
    yield clones.dsn(name)
    clones.drop(name)


def one(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def test_wheel_holds_the_two_packages_and_nothing_else(distributions: Path) -> None:
    with zipfile.ZipFile(one(distributions, "*.whl")) as wheel:
        names = wheel.namelist()
    roots = {name.split("/")[0] for name in names}
    assert {root for root in roots if not root.endswith(".dist-info")} == {"jobs", "jobs_sql"}
    assert {"jobs/py.typed", "jobs_sql/py.typed"} <= set(names)
    shipped = {Path(name).name for name in names if name.startswith("jobs_sql/schema/")}
    assert {path.name for path in (ROOT / "schema").glob("*.sql")} <= shipped
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_sdist_holds_what_a_reviewer_reads(distributions: Path) -> None:
    with tarfile.open(one(distributions, "*.tar.gz")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    expected = {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml"}
    expected |= {str(p.relative_to(ROOT)) for p in (ROOT / "queries").glob("*.sql")}
    expected |= {str(p.relative_to(ROOT)) for p in (ROOT / "schema").glob("*.sql")}
    assert expected <= names
    assert not [name for name in names if name.startswith(("tests/", ".venv", "devkit/"))]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("pattern", ["*.whl", "*.tar.gz"])
def test_installs_into_an_empty_environment_migrates_and_runs_a_job(
    pattern: str, distributions: Path, tmp_path: Path, empty: str
) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    binaries = tmp_path / "env" / "bin"
    package = one(distributions, pattern)
    run(
        binaries / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        f"{package}[binary]", cwd=tmp_path,
    )  # fmt: skip
    place = tmp_path / "elsewhere"
    place.mkdir()
    (place / "app.py").write_text(APP)
    where = run(binaries / "python", "-c", "import jobs; print(jobs.__file__)", cwd=place)
    assert str(tmp_path) in where

    run(binaries / "jobs", "migrate", cwd=place, JOBS_DSN=empty)
    run(binaries / "jobs", "migrate", "--check", cwd=place, JOBS_DSN=empty)
    run(binaries / "python", "-c", ENQUEUE, cwd=place, JOBS_DSN=empty)
    said = run(binaries / "jobs", "worker", "app", "--until-idle", cwd=place, JOBS_DSN=empty)
    assert "hello world in attempt 1" in said
    with psycopg.connect(empty) as conn:
        rows = conn.execute("select name, state, attempt from jobs.settled").fetchall()
    assert rows == [("greet", "completed", 1)]


def test_editable_install_can_migrate(empty: str) -> None:
    """The tests run from one: its schema files come from the package, not from the tree."""
    assert migrate(empty)
    check(empty)

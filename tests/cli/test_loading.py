"""`module:registry` on a command line: what is found, and what is said when it is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import environment

JOBS = """
from pydantic import BaseModel
import jobs

class Nothing(BaseModel):
    pass

@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
def one(input: Nothing, run: jobs.Run) -> None:
    pass

@jobs.job(tenant=jobs.NO_TENANT, idempotency_key=jobs.NO_KEY)
def two(input: Nothing, run: jobs.Run) -> None:
    pass
"""

# Stands for a command that takes a registry: prints its names, and errors as the command line does.
PROBE = """
import sys
sys.path.remove(sys.path[0])
from jobs.cli.loading import load_registry
from jobs.errors import JobsError
for target in sys.argv[1:]:
    try:
        print(*[job.name for job in load_registry(target)])
    except JobsError as error:
        print(error.code, error.cause, "FIX", error.fix)
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A folder with an application in it."""
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "background.py").write_text(JOBS)
    (package / "wiring.py").write_text(
        "import jobs\nfrom shop import background\n"
        "registry = jobs.Registry.of(background)\nnumber = 1\n"
    )
    return tmp_path


def load(app: Path, *targets: str) -> list[str]:
    """What a command says that is given each of these targets in this folder."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *targets],
        cwd=app,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert len(answers) == len(targets)
    return answers


def test_a_registry_or_a_module_in_the_working_directory(app: Path) -> None:
    assert load(app, "shop.wiring:registry", "shop.background") == ["one two"] * 2


def test_a_wrong_name_is_explained(app: Path) -> None:
    wrong = {
        "shp.wiring:registry": "no module 'shp'",
        "shop.wirin": "no module 'shop.wirin'",
        "shop.wiring:registri": "no 'registri'",
        "shop.wiring:number": "is a int",
        "shop.wiring": "shop.wiring has no jobs",
        "shop/wiring.py": "module:attribute",
        "shop.wiring:": "module:attribute",
        "": "module:attribute",
    }
    for answer, says in zip(load(app, *wrong), wrong.values(), strict=True):
        assert answer.startswith("JOB_CONFIG_INVALID ")
        assert says in answer


def test_a_module_that_cannot_be_imported_says_where(app: Path) -> None:
    broken = {
        "value": ("raise ValueError('boom')", "ValueError: boom"),
        "missing": ("import nowhere_at_all", "ModuleNotFoundError: No module named"),
        "syntax": ("def f(:", "SyntaxError: "),
        "ends": ("raise SystemExit(3)", "SystemExit: 3"),
    }
    for name, (line, _) in broken.items():
        (app / f"{name}.py").write_text(f"\n{line}\n")
    targets = [f"{name}{attribute}" for name in broken for attribute in ("", ":registry")]
    for target, answer in zip(targets, load(app, *targets), strict=True):
        name = target.partition(":")[0]
        assert answer.startswith(f"JOB_LOAD_FAILED importing {name} raised {broken[name][1]}")
        assert f"({app / name}.py, line 2)" in answer


@pytest.mark.parametrize("namesake", ["jobs.py", "jobs/__init__.py"])
def test_an_application_with_a_module_called_jobs(app: Path, namesake: str) -> None:
    (app / namesake).parent.mkdir(exist_ok=True)
    (app / namesake).write_text("def send():\n    pass\n")
    for answer in load(app, "jobs", "jobs:registry"):
        assert answer.startswith("JOB_MODULE_SHADOWED")
        assert str(app / namesake) in answer
        assert "FIX Rename" in answer


def test_an_application_that_imports_from_its_own_jobs(app: Path) -> None:
    package = app / "jobs"
    package.mkdir()
    (package / "__init__.py").write_text("def send():\n    pass\n")
    (package / "mails.py").write_text("")
    for name, line in (("one", "from jobs import send"), ("two", "import jobs.mails")):
        (app / f"{name}.py").write_text(line)
    for answer in load(app, "one", "two", "two:registry"):
        assert answer.startswith("JOB_MODULE_SHADOWED")
        assert str(package) in answer


def test_the_library_itself_has_no_jobs(app: Path) -> None:
    (answer,) = load(app, "jobs")
    assert answer.startswith("JOB_MODULE_SHADOWED")


def test_a_declaration_that_is_refused_is_found(app: Path) -> None:
    path = app / "shop" / "wrong.py"
    path.write_text("import jobs\n\n@jobs.job(tenant=jobs.NO_TENANT)\ndef one(input): ...\n")
    (said,) = load(app, "shop.wrong")
    assert said.startswith("JOB_IDEMPOTENCY_REQUIRED idempotency_key: ")
    assert f"({path}, line 3) FIX" in said

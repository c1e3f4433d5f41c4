"""The import contracts hold, and each of them notices what it is there for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lint import tree

LINT_IMPORTS = Path(sys.executable).parent / "lint-imports"
# Contract -> an import that breaks it, as (file, line, what the report names).
BREAKS = {
    "generated code knows nothing of the runtime": [
        ("generated/jobs_sql/claim.py", "import jobs.errors", "jobs_sql.claim -> jobs.errors"),
    ],
    "the product knows nothing of its tools": [
        ("jobs/ids.py", "import devkit.rundir", "jobs.ids -> devkit.rundir"),
        ("generated/jobs_sql/_rows.py", "import codegen.generate", "-> codegen.generate"),
    ],
    "the runtime imports one way": [
        ("jobs/errors.py", "import jobs.retry", "jobs.errors -> jobs.retry"),
        ("jobs/enqueue.py", "import jobs.run", "jobs.enqueue -> jobs.run"),
        ("jobs/declare.py", "import jobs.worker.worker", "jobs.declare -> jobs.worker.worker"),
        ("jobs/registry.py", "import jobs.cli", "jobs.registry -> jobs.cli"),
        ("jobs/inspect.py", "import jobs.migrate", "jobs.inspect -> jobs.migrate"),
        ("jobs/worker/worker.py", "import jobs.inspect", "jobs.worker.worker -> jobs.inspect"),
        ("jobs/surprise.py", "", "jobs.surprise"),
    ],
    "statements are sent from few places": [
        ("jobs/payload.py", "import jobs_sql.claim", "jobs.payload -> jobs_sql.claim"),
    ],
}


def run(root: Path) -> tuple[int, str]:
    """Exit code and report of `make lint`'s import check in a tree."""
    done = subprocess.run(
        [LINT_IMPORTS, "--no-cache", "--no-logo"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'generated'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report on a copy of the packages with all these imports added."""
    copy = tmp_path_factory.mktemp("tree")
    ignore = shutil.ignore_patterns("__pycache__")
    for folder in ("jobs", "generated", "codegen", "devkit"):
        shutil.copytree(tree.ROOT / folder, copy / folder, ignore=ignore)
    shutil.copy(tree.ROOT / "pyproject.toml", copy)
    for file, line, _ in (each for breaks in BREAKS.values() for each in breaks):
        with (copy / file).open("a", encoding="utf-8") as appended:
            appended.write(f"\n{line}\n")
    code, report = run(copy)
    assert code == 1
    return report


def test_our_imports_keep_the_contracts() -> None:
    code, report = run(tree.ROOT)
    assert code == 0, report
    assert f"{len(BREAKS)} kept, 0 broken" in report


@pytest.mark.parametrize("contract", BREAKS)
def test_contract_notices(contract: str, broken: str) -> None:
    assert f"{contract} BROKEN" in broken
    for _, _, named in BREAKS[contract]:
        assert named in broken

"""The command: deterministic, offline, blind to nothing in the folder it owns."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from codegen import generate
from tests.codegen.conftest import FIXTURE, PACKAGE, Modules

ROOT = Path(generate.ROOT)


def run(root: Path, *arguments: str) -> int:
    """Run the command on a project."""
    return generate.main(["--root", str(root), "--package", str(PACKAGE), *arguments])


@pytest.fixture
def project(hostile_root: Path, tmp_path: Path) -> Path:
    """A compiled project of the test's own."""
    root = tmp_path / "project"
    shutil.copytree(hostile_root, root)
    return root


def test_generated_code_passes_the_strict_type_checker(hostile_root: Path) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir",
         str(hostile_root / ".mypy_cache"), "-p", "hostile_sql"],
        cwd=hostile_root / "generated",
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout


def test_generated_code_is_formatted(hostile_root: Path) -> None:
    ruff = Path(sys.executable).parent / "ruff"
    config = ["--config", str(ROOT / "pyproject.toml")]
    for command in (["format", "--check"], ["check", "--ignore", "N803"]):
        ran = subprocess.run(
            [ruff, *command, *config, hostile_root / "generated"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout


def test_two_runs_write_the_same_bytes(project: Path) -> None:
    before = generate.existing(project, PACKAGE)
    shutil.rmtree(project / "generated")
    (project / generate.DOCS).unlink()
    assert run(project) == 0
    assert generate.existing(project, PACKAGE) == before


def test_check_sees_every_kind_of_drift(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fresh = generate.existing(project, PACKAGE)
    package = project / PACKAGE
    (package / "stale.py").write_text("x = 1\n")
    (package / "schema" / "0000_gone.sql").write_text("select 1;\n")
    (package / "gaps.py").unlink()
    edited = package / "words.py"
    edited.write_text(edited.read_text().replace("fx.word", "fx.words"))
    (project / generate.DOCS).write_text("edited by hand\n")
    before = generate.existing(project, PACKAGE)
    assert run(project, "--check") == 1
    said = capsys.readouterr().err
    for line in (
        "extra:   generated/hostile_sql/stale.py",
        "extra:   generated/hostile_sql/schema/0000_gone.sql",
        "missing: generated/hostile_sql/gaps.py",
        "differs: generated/hostile_sql/words.py",
        "differs: docs/sql.md",
        "    -from fx.words as w",
        "    +from fx.word as w",
    ):
        assert f"{line}\n" in said
    assert generate.existing(project, PACKAGE) == before, "--check wrote something"
    assert run(project) == 0
    assert generate.existing(project, PACKAGE) == fresh


def test_a_changed_source_is_drift_even_where_the_code_stays(project: Path, tmp_path: Path) -> None:
    with (project / "queries" / "words.sql").open("a") as file:
        file.write("\n")
    (project / "schema" / "0002_more.sql").write_text("create table fx.more (id bigint);\n")
    stage = tmp_path / "stage"
    stage.mkdir()
    new = generate.compile_project(project, stage, PACKAGE)
    said = generate.differences(generate.existing(project, PACKAGE), new)
    assert [line for line in said if not line.startswith("    ")] == [
        "differs: generated/hostile_sql/_registry.py",
        "missing: generated/hostile_sql/schema/0002_more.sql",
        "differs: generated/hostile_sql/words.py",
    ]


def test_a_refused_file_leaves_the_tree_alone(project: Path) -> None:
    before = generate.existing(project, PACKAGE)
    (project / "queries" / "words.sql").write_text("-- name: Bad :one\nselect 1 as id;\n")
    assert run(project) == 1
    assert generate.existing(project, PACKAGE) == before


def test_a_copy_of_the_tree_compiles_without_git_network_or_the_executable_bit(
    tmp_path: Path,
) -> None:
    """The command as `make check-generated` runs it, from a plain copy of what is checked in."""
    copy = tmp_path / "copy"
    for name in ("codegen", "queries", "schema"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "sqlc.yaml", copy / "sqlc.yaml")
    (copy / "codegen" / "sqlc-gen-python").chmod(0o644)
    offline = ["unshare", "--user", "--net", "--map-root-user"]
    usable = subprocess.run([*offline, "true"], capture_output=True, check=False).returncode == 0
    ran = subprocess.run(
        [*(offline if usable else []), sys.executable, "-m", "codegen"],
        cwd=copy,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path / "nowhere")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert generate.existing(copy) == generate.existing(ROOT), "run make generate"


def test_the_tree_is_current() -> None:
    assert generate.main(["--check"]) == 0, "run make generate"


def test_modules_import_the_standard_library_and_psycopg_only(hostile_root: Path) -> None:
    allowed = set(sys.stdlib_module_names) | {"psycopg"}
    folders = [hostile_root / PACKAGE, ROOT / generate.PACKAGE]
    files = [file for folder in folders for file in folder.glob("*.py")]
    assert len(files) > 20
    for file in files:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, file
            elif isinstance(node, ast.ImportFrom) and not node.level:
                assert str(node.module).split(".")[0] in allowed, file


def test_the_schema_is_package_data() -> None:
    folder = resources.files("jobs_sql.schema")
    packed = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    assert packed == {file.name: file.read_bytes() for file in (ROOT / "schema").glob("*.sql")}


def test_docstrings_hold_the_header(hostile: Modules) -> None:
    words = hostile["words"]
    said = str(words.put_word.__doc__)
    assert words.put_word_async.__doc__ == said
    for part in (
        "Write through hostile parameter names, over several header lines.\n",
        "    class_: `text`.\n",
        "    from_: `text`, None is NULL.\n",
        "The number of rows the statement changed.\n",
        "The count of rows, 0 where the id exists.\n",
        "Locks: the new row\n",
        "Index: word_pkey\n",
        "Fence: none, a new row\n",
        "Cost: one insert\n",
        "Source: queries/words.sql: PutWord\n",
    ):
        assert part in said


def test_registry_of_the_fixture(hostile: Modules) -> None:
    statements = hostile["_registry"].STATEMENTS
    assert list(statements) == sorted(statements)
    item = statements["PutWord"]
    assert (item.module, item.function, item.command) == ("words", "put_word", ":execrows")
    assert (
        item.header["purpose"] == "write through hostile parameter names, over several header lines"
    )
    assert [param.name for param in item.params][:3] == ["id", "class", "from"]
    assert [param.argument for param in item.params][:3] == ["id", "class_", "from_"]
    assert item.source == "queries/words.sql"
    source = (FIXTURE / item.source).read_bytes()
    assert item.sha256 == hashlib.sha256(source).hexdigest()
    assert statements["CopyWords"].text.startswith("copy fx.word (")
    odd = statements["ReorderedParameters"].params
    assert [value.name for value in odd] == ["id", "expected", "amount", "note"]
    assert [value.number for value in odd] != [1, 2, 3, 4], "shows nothing any more"


def test_docs_list_every_statement(hostile_root: Path, hostile: Modules) -> None:
    page = (hostile_root / generate.DOCS).read_text("utf-8")
    for name, item in hostile["_registry"].STATEMENTS.items():
        assert f"\n### {name}\n" in page
        for key in ("purpose", "callers", "locks", "index", "fence", "cost"):
            assert f"| {key} | {item.header[key].replace('<', '&lt;')} |\n" in page

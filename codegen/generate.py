"""
`python -m codegen`: queries/ and schema/ through sqlc into generated/jobs_sql and docs/sql.md.

Everything happens in a temporary folder first, so that sqlc never writes into the tree and
`--check` is the same run without the last step. No server, no network, no git.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("generated/jobs_sql")
DOCS = Path("docs/sql.md")
# sqlc's static catalog does not know the columns every table has; they are added to the copy of
# the schema it reads, and to nothing else.
SYSTEM_COLUMNS = ("ctid tid", "xmin xid", "xmax xid", "tableoid oid")
_CREATE_TABLE = re.compile(
    r"^\s*create\s+(?:unlogged\s+)?table\s+(?:if\s+not\s+exists\s+)?([\w.]+)",
    re.IGNORECASE | re.MULTILINE,
)


class CompileError(Exception):
    """Raised when sqlc or the plugin refuses the input; the message is theirs."""


def find_sqlc() -> Path:
    """Return the pinned sqlc beside the running interpreter; raises CompileError without it."""
    sqlc = Path(sys.executable).parent / ("sqlc.exe" if os.name == "nt" else "sqlc")
    if not sqlc.exists():
        raise CompileError(f"no sqlc beside {sys.executable}: install requirements-dev.txt")
    return sqlc


def compile_project(root: Path, stage: Path, package: Path = PACKAGE) -> dict[Path, bytes]:
    """
    Compile the project at `root` (schema/, queries/, sqlc.yaml) using `stage` as scratch.

    `package` is where its sqlc.yaml puts the package. Returns path relative to the root ->
    contents, for every file that belongs to that package and the page of statements. Raises
    CompileError with what sqlc said.
    """
    shutil.copytree(root / "queries", stage / "queries")
    shutil.copytree(root / "schema", stage / "schema")
    shutil.copy(root / "sqlc.yaml", stage / "sqlc.yaml")
    shutil.copytree(
        ROOT / "codegen", stage / "codegen", ignore=shutil.ignore_patterns("__pycache__")
    )
    # A checkout may have lost the bit (an archive, a copied folder).
    (stage / "codegen" / "sqlc-gen-python").chmod(0o755)
    _add_system_columns(stage / "schema")
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    run = subprocess.run(
        [find_sqlc(), "generate", "--no-remote"],
        cwd=stage,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise CompileError(_message(run.stderr or run.stdout))
    files = {
        path.relative_to(stage): path.read_bytes()
        for folder in (package, DOCS.parent)
        for path in sorted((stage / folder).rglob("*"))
        if path.is_file()
    }
    files[package / "py.typed"] = b""
    for path in sorted((root / "schema").glob("*.sql")):
        files[package / "schema" / path.name] = path.read_bytes()
    return files


def _message(output: str) -> str:
    """What sqlc said, once: it repeats an error for each of the plugin's outputs."""
    prefix = "error generating code: process: error running command "
    parts = [part.strip().replace(prefix, "") for part in output.split("# package python")]
    return "\n".join(dict.fromkeys(part for part in parts if part))


def _add_system_columns(schema: Path) -> None:
    tables = [
        name
        for path in sorted(schema.glob("*.sql"))
        for name in _CREATE_TABLE.findall(path.read_text("utf-8"))
    ]
    columns = ", ".join(f"add column {column} not null" for column in SYSTEM_COLUMNS)
    text = "".join(f"alter table {name} {columns};\n" for name in dict.fromkeys(tables))
    (schema / "9999_system_columns.sql").write_text(text, "utf-8")


def existing(root: Path, package: Path = PACKAGE) -> dict[Path, bytes]:
    """Read what the tree holds of the files the compiler owns."""
    paths = [path for path in sorted((root / package).rglob("*")) if path.is_file()]
    if (root / DOCS).exists():
        paths.append(root / DOCS)
    return {
        path.relative_to(root): path.read_bytes()
        for path in paths
        if "__pycache__" not in path.parts
    }


def differences(old: Mapping[Path, bytes], new: Mapping[Path, bytes]) -> list[str]:
    """Describe how two file sets differ, one line a file and the start of each text diff."""
    report: list[str] = []
    for path in sorted({*old, *new}):
        if path not in new:
            report.append(f"extra:   {path}")
        elif path not in old:
            report.append(f"missing: {path}")
        elif old[path] != new[path]:
            report.append(f"differs: {path}")
            lines = difflib.unified_diff(
                old[path].decode(errors="replace").splitlines(),
                new[path].decode(errors="replace").splitlines(),
                "in the tree",
                "generated",
                lineterm="",
                n=1,
            )
            report += [f"    {line}" for line in list(lines)[:20]]
    return report


def write(root: Path, old: Mapping[Path, bytes], new: Mapping[Path, bytes]) -> int:
    """Make the tree hold exactly the new files; returns how many were written or deleted."""
    changed = 0
    for path, content in new.items():
        if old.get(path) != content:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
            changed += 1
    for path in old.keys() - new.keys():
        (root / path).unlink()
        changed += 1
    return changed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, or 1 on drift (`--check`) and on refused input."""
    parser = argparse.ArgumentParser(prog="python -m codegen", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--root", type=Path, default=ROOT, help="project to compile")
    parser.add_argument("--package", type=Path, default=PACKAGE, help="its package folder")
    args = parser.parse_args(argv)
    root: Path = args.root.resolve()
    with tempfile.TemporaryDirectory(prefix="codegen-") as stage:
        try:
            new = compile_project(root, Path(stage), args.package)
        except CompileError as error:
            sys.stderr.write(f"{error}\n")
            return 1
    old = existing(root, args.package)
    if not args.check:
        changed = write(root, old, new)
        sys.stdout.write(f"{len(new)} files, {changed} changed\n")
        return 0
    if report := differences(old, new):
        sys.stderr.write("\n".join([*report, "generated files are stale: run make generate", ""]))
        return 1
    sys.stdout.write(f"{len(new)} generated files are current\n")
    return 0

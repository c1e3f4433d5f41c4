"""Things that exist once in the runtime, so that there is one place to reason about."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def modules() -> dict[str, ast.Module]:
    """The syntax trees of the runtime, by path under the repository."""
    paths = sorted((ROOT / "jobs").rglob("*.py"))
    assert paths
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in paths}


def importers_of(package: str) -> dict[str, set[str]]:
    """Which runtime modules import a module of a package, by the name of that module."""
    found: dict[str, set[str]] = defaultdict(set)
    for path, module in modules().items():
        for node in ast.walk(module):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                dotted = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                dotted = [alias.name for alias in node.names]
            else:
                continue
            for name in dotted:
                if name.startswith(f"{package}."):
                    found[name.removeprefix(f"{package}.").partition(".")[0]].add(path)
    return found


def test_one_module_enqueues() -> None:
    assert importers_of("jobs_sql")["enqueue"] == {"jobs/enqueue.py"}


def test_one_module_claims_and_one_renews() -> None:
    importers = importers_of("jobs_sql")
    assert importers["claim"] <= {"jobs/worker/worker.py", "jobs/worker/held.py"}
    assert importers["lease"] == {"jobs/worker/renewer.py"}


def test_one_module_calls_job_functions() -> None:
    callers = set()
    for path, module in modules().items():
        # Declarations look at the function's name and signature, and call it nowhere.
        if path in ("jobs/declare.py", "jobs/definition.py", "jobs/handle.py"):
            calls = [node.func for node in ast.walk(module) if isinstance(node, ast.Call)]
            assert not [call for call in calls if _is_fn(call)], path
        elif any(_is_fn(node) for node in ast.walk(module)):
            callers.add(path)
    assert callers == {"jobs/worker/execution.py"}


def _is_fn(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "fn"

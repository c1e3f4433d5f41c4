"""Things that exist once in the runtime, so that there is one place to reason about."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from jobs_sql._registry import STATEMENTS

ROOT = Path(__file__).resolve().parents[2]


def modules() -> dict[str, ast.Module]:
    """The syntax trees of the runtime, by path under the repository."""
    paths = sorted((ROOT / "jobs").rglob("*.py"))
    assert paths
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in paths}


def users_of(*functions: str) -> set[str]:
    """Which runtime modules name any of the functions."""
    return {
        path
        for path, module in modules().items()
        for node in ast.walk(module)
        if (isinstance(node, ast.Name) and node.id in functions)
        or (isinstance(node, ast.Attribute) and node.attr in functions)
    }


def both(*statements: str) -> list[str]:
    """The synchronous and the asynchronous functions of statements."""
    return [*statements, *(f"{statement}_async" for statement in statements)]


def test_one_module_enqueues() -> None:
    inserts = both("enqueue_job", "enqueue_jobs", "insert_jobs", "copy_jobs")
    assert users_of(*inserts) == {"jobs/enqueue.py"}
    # A relay publishes what was staged, and asks the same of a repeat.
    asks = users_of(*both("find_enqueued", "undo_republished"))
    assert asks == {"jobs/enqueue.py", "jobs/relay/queue.py"}


@pytest.mark.parametrize("statement", ["claim_jobs", "renew_leases"])
def test_one_module_claims_and_one_renews(statement: str) -> None:
    assert len(users_of(*both(statement))) == 1


def test_nothing_is_decided_by_the_registry_of_workers() -> None:
    """Its rows are written by the worker they are of, and read for operators only."""
    of_workers = re.compile(r"jobs\.worker(?![.\w])")
    about = {one.name for one in STATEMENTS.values() if of_workers.search(one.text)}
    assert about == {"RecordWorker", "MarkWorker", "RemoveWorker", "ListWorkers"}
    assert users_of(*both("list_workers")) - {"jobs/cli/looking.py"} == {"jobs/fleet.py"}
    constraints = [
        path.name
        for path in (ROOT / "schema").glob("*.sql")
        if re.search(r"references\s+jobs\.worker", path.read_text())
    ]
    assert constraints == []


def test_one_path_calls_job_functions() -> None:
    callers = set()
    for path, module in modules().items():
        # Declarations look at the function's name and signature, and call it nowhere.
        if path in ("jobs/declare.py", "jobs/definition.py", "jobs/handle.py"):
            calls = [node.func for node in ast.walk(module) if isinstance(node, ast.Call)]
            assert not [call for call in calls if _is_fn(call)], path
        elif any(_is_fn(node) for node in ast.walk(module)):
            callers.add(path)
    # The second is the far end of the first, in another process. Tasks are no jobs.
    path = {"jobs/worker/execution.py", "jobs/worker/child.py"}
    assert callers - {"jobs/tasking.py"} == path


def _is_fn(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "fn"

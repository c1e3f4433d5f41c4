"""The physical limit: pgbench sending our own statements, with nothing of Python in between."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from bench.arena import Arena, scalar
from bench.environments import UnavailableError
from jobs_sql._registry import STATEMENTS

# As our workers ask for it: planned once for the session.
_PLANNED_ONCE = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off"
_LAST_SELECT = "select\n    'claimed'::text as verdict"
_IDS = (
    "select coalesce(array_agg(c.id), '{}')::text as ids,"
    " coalesce(array_agg(c.claims), '{}')::text as claims from claimed as c \\gset\n"
)
_SECONDS = 120


def _filled(name: str, given: dict[str, str]) -> str:
    """A statement with its parameters replaced by what pgbench reads."""
    statement = STATEMENTS[name]
    values = {parameter.number: given[parameter.name] for parameter in statement.params}
    # pgbench takes :name for a variable everywhere, in the comment as well.
    text = re.sub(r"/\* jobs:\w+ \*/ ", "", statement.text)
    return re.sub(r"\$(\d+)", lambda match: values[int(match[1])], text)


def cycle(batch: int, queue: str = "bench") -> str:
    """One claim and one settle of everything it returned."""
    claim = _filled(
        "ClaimJobs",
        {
            "queues": f"'{{{queue}}}'",
            "free": f"'{{{batch}}}'",
            "rescue": "false",
            "rescue_limit": "100",
            "limited": "'{}'",
            "limits": "'{}'",
            "park_limit": "500",
            "sweep": "false",
            "ahead": "false",
            "worker": "'pgbench'",
            "lease": "'30 s'",
            **dict.fromkeys(("turns", "mosts", "floor_ats", "floor_ids", "chosen"), "'{}'"),
        },
    )
    head, found, _ = claim.rpartition(_LAST_SELECT)
    if not found:
        raise UnavailableError("the last select of ClaimJobs has changed: adapt bench/pgbench.py")
    size = "array[cardinality(:ids::uuid[])]"
    settle = _filled(
        "SettleJobs",
        {
            "ids": ":ids",
            "claims": ":claims",
            "outcomes": f"array_fill('completed'::text, {size})",
            "delays": f"array_fill(interval '0', {size})",
            "error_types": f"array_fill(null::text, {size})",
            "error_messages": f"array_fill(null::text, {size})",
            "tracebacks": f"array_fill(null::text, {size})",
            "results": f"array_fill(null::text, {size})",
            "worker": "'pgbench'",
            "release": "true",
        },
    )
    return head + _IDS + settle.rstrip().rstrip(";") + ";\n"


_INSERT = (
    "insert into jobs.job (id, run_id, queue, name, max_attempts, input)"
    " select gen_random_uuid(), gen_random_uuid(), 'bench', 'noop', 3,"
    " '{\"v\": 1}' from generate_series(1, ROWS);\n"
)


def _pgbench(arena: Arena, dsn: str, script: str, clients: int, transactions: int) -> float:
    """Run it; return the seconds."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        program = Path(arena.server.bindir) / "pgbench"
        command = [str(program), "-n", "-M", "prepared", "-c", str(clients), "-j", "1"]
        command += ["-t", str(transactions), "-f", file.name, dsn]
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        seconds = time.perf_counter() - began
    if done.returncode:
        raise UnavailableError(f"pgbench failed: {done.stderr.strip()[-200:]}")
    return seconds


def drain(arena: Arena, dsn: str, count: int, batch: int, clients: int) -> float:
    """Jobs a second of `clients` sessions that claim and settle `count` jobs in batches.

    With two clients a settle may meet a row that the claim of the other one is just looking at, and
    is told to send it again. A worker does; this script cannot, so only what settled counts.
    """
    planned = psycopg.conninfo.make_conninfo(dsn, options=_PLANNED_ONCE)
    transactions = max(1, count // batch // clients)
    seconds = _pgbench(arena, planned, cycle(batch), clients, transactions)
    with psycopg.connect(dsn) as conn:
        settled: int = scalar(conn, "select count(*) from jobs.settled")
    return settled / seconds


def insert(arena: Arena, dsn: str, rows: int, transactions: int) -> float:
    """Rows a second of one session that inserts `rows` into jobs.job in each transaction."""
    script = _INSERT.replace("ROWS", str(rows))
    return rows * transactions / _pgbench(arena, dsn, script, 1, transactions)

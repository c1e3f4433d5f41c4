"""The worker beside the physical limit: our two statements driven by pgbench on the same server.

    python -m bench.foundation [--jobs 50000] [--rounds 3] [--batch 100]

One embedded, durable server. Each round drains the same number of no-op jobs once with one worker
process and once with pgbench sending ClaimJobs and SettleJobs at the same batch, in turn; medians
and the ratio are printed, and for both statements the buffers and WAL bytes a job that
pg_stat_statements counted.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

from bench.noop import Nothing, noop
from devkit import postgres
from jobs.migrate import migrate
from jobs_sql._registry import STATEMENTS

_WORKER = """
import asyncio, sys
import jobs
from bench import noop
worker = jobs.Worker(sys.argv[1], jobs.Registry.of(noop), queues={"bench": int(sys.argv[2])})
stats = asyncio.run(worker.run_until_idle())
print(stats.completed)
"""


def numbered(text: str, values: dict[int, str]) -> str:
    """A statement with its $n replaced by what pgbench or the server can read."""
    named = re.sub(r"/\* jobs:\w+ \*/ ", "", text)  # pgbench takes :name for a variable everywhere
    return re.sub(r"\$(\d+)", lambda match: values[int(match[1])], named)


def pgbench_script(batch: int) -> str:
    """One claim and one settle of everything it returned."""
    claim = STATEMENTS["ClaimJobs"]
    order = {p.name: p.number for p in claim.params}
    given = {
        "queues": "'{bench}'",
        "free": f"'{{{batch}}}'",
        "rescue": "false",
        "rescue_limit": "100",
        "worker": "'pgbench'",
        "lease": "'30 s'",
    }
    text = numbered(claim.text, {order[name]: value for name, value in given.items()})
    head, found, _ = text.rpartition("select\n    'claimed'::text as verdict")
    if not found:
        raise SystemExit("the last select of ClaimJobs has changed: adapt bench/foundation.py")
    head += (
        "select coalesce(array_agg(c.id), '{}')::text as ids,"
        " coalesce(array_agg(c.claims), '{}')::text as claims from claimed as c \\gset\n"
    )
    settle = STATEMENTS["SettleJobs"]
    order = {p.name: p.number for p in settle.params}
    size = "array[cardinality(:ids::uuid[])]"
    given = {
        "ids": ":ids",
        "claims": ":claims",
        "outcomes": f"array_fill('completed'::text, {size})",
        "delays": f"array_fill(interval '0', {size})",
        "error_types": f"array_fill(null::text, {size})",
        "error_messages": f"array_fill(null::text, {size})",
        "tracebacks": f"array_fill(null::text, {size})",
        "worker": "'pgbench'",
    }
    text = numbered(settle.text, {order[name]: value for name, value in given.items()})
    return head + text.rstrip().rstrip(";") + ";\n"


def load(conn: psycopg.Connection[Any], count: int) -> None:
    conn.execute("truncate jobs.job, jobs.settled, jobs.counter, jobs.attempt")
    noop.copy_many(conn, (Nothing(i=i) for i in range(count)))
    conn.execute("vacuum analyze jobs.job")
    conn.execute("checkpoint")


def drain_worker(dsn: str, count: int, batch: int) -> float:
    """Jobs a second of one worker process, from the first claim to the last settle."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        done = subprocess.run(
            [sys.executable, "-c", _WORKER, dsn, str(batch)],
            check=True,
            capture_output=True,
            text=True,
        )
        if int(done.stdout) != count:
            raise SystemExit(f"{done.stdout} of {count} jobs were completed")
        row = conn.execute(
            "select extract(epoch from max(settled_at) - min(claimed_at))::float8 from jobs.settled"
        ).fetchone()
    return count / row[0] if row else 0.0


def drain_pgbench(bindir: Path, dsn: str, count: int, batch: int, clients: int) -> float:
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(pgbench_script(batch))
        script.flush()
        command = [str(bindir / "pgbench"), "-n", "-M", "prepared", "-c", str(clients), "-j", "1"]
        command += ["-t", str(count // batch // clients), "-f", script.name, dsn]
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        elapsed = time.perf_counter() - started
    with psycopg.connect(dsn) as conn:
        row = conn.execute("select count(*) from jobs.settled").fetchone()
    # With two clients a settle may find rows that the other one's claim just looked at, and is
    # told to send them again. A worker does; this script cannot, so only what settled counts.
    return row[0] / elapsed if row else 0.0


def costs(conn: psycopg.Connection[Any]) -> list[tuple[str, int, float, float]]:
    """Statement, calls, buffers and WAL bytes a job, from pg_stat_statements."""
    return [
        (name, calls, float(buffers / rows), float(wal / rows))
        for name, calls, rows, buffers, wal in conn.execute(
            "select substring(query from 'jobs:([a-z_]+)'), sum(calls), sum(rows),"
            " sum(shared_blks_hit + shared_blks_read), sum(wal_bytes) from pg_stat_statements"
            " where query ~ 'jobs:(claim_jobs|settle_jobs)' group by 1 having sum(rows) > 0"
            " order by 1"
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=100)
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="sql-jobs-bench-"))
    server = postgres.start(
        root,
        settings={
            "shared_buffers": "1GB",
            "max_wal_size": "4GB",
            "pg_stat_statements.track": "all",
        },
    )
    try:
        plan = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off"
        dsn = server.dsn()
        pgbench_dsn = psycopg.conninfo.make_conninfo(dsn, options=plan)
        rates: dict[str, list[float]] = {"worker": [], "pgbench 1": [], "pgbench 2": []}
        with psycopg.connect(dsn, autocommit=True) as conn:
            migrate(conn)
            conn.execute("create extension pg_stat_statements")
            for round_number in range(args.rounds):
                load(conn, args.jobs)
                conn.execute("select pg_stat_statements_reset()")
                rates["worker"].append(drain_worker(dsn, args.jobs, args.batch))
                measured = costs(conn)
                for clients in (1, 2):
                    load(conn, args.jobs)
                    rates[f"pgbench {clients}"].append(
                        drain_pgbench(server.bindir, pgbench_dsn, args.jobs, args.batch, clients)
                    )
                print(round_number + 1, {k: round(v[-1]) for k, v in rates.items()}, flush=True)
        for name, calls, buffers, wal in measured:
            print(f"{name:12} {calls:6} calls  {buffers:6.1f} buffers  {wal:6.0f} WAL bytes a job")
        medians = {name: statistics.median(values) for name, values in rates.items()}
        for name, rate in medians.items():
            share = medians["worker"] / rate
            print(f"{name:12} {rate:9,.0f} jobs/s   worker / this = {share:.2f}")
    finally:
        server.stop()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()

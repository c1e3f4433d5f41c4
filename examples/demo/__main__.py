"""The main job on real input: digest every file of the standard library, and lose nothing.

Starts an embedded PostgreSQL, enqueues one job a file, runs them in two worker processes of which
one is killed with SIGKILL half-way, and compares the result with a direct computation. Exits
non-zero on any difference. Run it with ``make demo``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from devkit import postgres
from examples.demo.work import SourceFile, digest, digest_file
from jobs.inspect import outcome_counts
from jobs.migrate import migrate

LEASE_SECONDS = 5
GIVE_UP_SECONDS = 110
WORKERS = ("demo-worker-1", "demo-worker-2")


def library_files() -> list[Path]:
    """Every file of the standard library, without what Python writes there by itself."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skip = {"__pycache__", "site-packages", "dist-packages"}
    return sorted(
        path
        for path in root.rglob("*")
        if path.is_file() and not path.is_symlink() and not skip & set(path.relative_to(root).parts)
    )


def start_worker(name: str, dsn: str, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "jobs", "worker", "examples.demo.work", "--name", name]
    command += ["--queue", "files=8", "--lease", str(LEASE_SECONDS)]
    with log.open("wb") as out:
        return subprocess.Popen(
            command, env={**os.environ, "JOBS_DSN": dsn}, stdout=out, stderr=subprocess.STDOUT
        )


def progress(done: int, total: int, note: str, started: float) -> None:
    """One line, redrawn on a terminal, printed now and then elsewhere."""
    width = 40
    filled = width * done // total
    line = f"[{'#' * filled}{'.' * (width - filled)}] {done:>6}/{total} "
    line += f"{time.monotonic() - started:5.1f} s  {note}"
    if sys.stdout.isatty():
        print(f"\r{line:<100}", end="", flush=True)
    else:
        print(line, flush=True)


def one(conn: psycopg.Connection[Any], query: str, *parameters: Any) -> Any:
    row = conn.execute(query, parameters).fetchone()
    return None if row is None else row[0]


def run(conn: psycopg.Connection[Any], dsn: str, files: list[Path], logs: Path) -> float:
    """Enqueue, run, kill one worker half-way; return the seconds the drain took."""
    with conn.transaction():
        answers = digest.enqueue_many(conn, [SourceFile(path=path) for path in files])
    print(f"enqueued {len(answers)} jobs in one transaction", flush=True)

    started = time.monotonic()
    workers = {name: start_worker(name, dsn, logs / f"{name}.log") for name in WORKERS}
    victim, note, shown, killed = WORKERS[0], "", 0.0, False
    try:
        while True:
            done = one(conn, "select count(*) from demo_file")
            left = one(conn, "select count(*) from jobs.job")
            if done == len(files) and left == 0:
                break
            if not killed and done >= len(files) // 2:
                holds = one(conn, "select count(*) from jobs.job where worker = %s", victim)
                if holds or done >= len(files) * 3 // 4:
                    workers[victim].send_signal(signal.SIGKILL)
                    killed, note = True, f"killed {victim} with SIGKILL, it held {holds} jobs"
            now = time.monotonic()
            if now - shown > (0.1 if sys.stdout.isatty() else 2.0):
                progress(done, len(files), note, started)
                shown = now
            if now - started > GIVE_UP_SECONDS:
                raise SystemExit(f"gave up with {done} of {len(files)} files done")
            if all(worker.poll() is not None for worker in workers.values()):
                raise SystemExit(f"both workers have ended; see their output in {logs}")
            time.sleep(0.02)
        seconds = time.monotonic() - started
        progress(len(files), len(files), note, started)
        print(flush=True)
        return seconds
    finally:
        for worker in workers.values():
            if worker.poll() is None:
                worker.terminate()
        for worker in workers.values():
            worker.wait(timeout=30)


def verify(conn: psycopg.Connection[Any], files: list[Path]) -> list[str]:
    """Compare the table with a direct computation; return the differences."""
    stored = {
        path: (sha256, lines)
        for path, sha256, lines in conn.execute("select path, sha256, lines from demo_file")
    }
    wrong = [
        f"{path}: stored {stored.get(str(path))}, computed {expected}"
        for path in files
        if stored.get(str(path)) != (expected := digest_file(path))
    ]
    if len(stored) != len(files):
        wrong.append(f"{len(stored)} rows for {len(files)} files")
    completed = one(conn, "select count(*) from jobs.settled where state = 'completed'")
    if completed != len(files):
        wrong.append(f"{completed} completed jobs for {len(files)} files")
    return wrong


def report(conn: psycopg.Connection[Any], files: list[Path], seconds: float) -> None:
    counts = {c.outcome: c.amount for c in outcome_counts(conn, since=timedelta(hours=1))}
    print(f"jobs a second   {len(files) / seconds:,.0f}  (waiting for the lapsed lease included)")
    print(f"retries         {counts.get('retried', 0)}  (failed on purpose, run again)")
    print(f"rescued jobs    {counts.get('rescued', 0)}  (of the killed worker)")
    print("slowest files")
    for path, milliseconds in conn.execute(
        "select path, milliseconds from demo_file order by milliseconds desc limit 5"
    ):
        print(f"  {milliseconds:8.1f} ms  {path}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the server up, print its DSN")
    keep = parser.parse_args().keep

    root = Path(tempfile.mkdtemp(prefix="sql-jobs-demo-"))
    server = postgres.start(root, die_with_parent=not keep)
    try:
        dsn = server.dsn()
        print(f"PostgreSQL {server.major} is up", flush=True)
        with psycopg.connect(dsn, autocommit=True) as conn:
            applied = migrate(conn)
            print(f"schema installed: {', '.join(m.name for m in applied)}", flush=True)
            conn.execute(
                "create table demo_file (path text primary key, sha256 text not null,"
                " lines bigint not null, milliseconds float8 not null,"
                " attempt bigint not null, claims bigint not null)"
            )
            files = library_files()
            seconds = run(conn, dsn, files, root)
            wrong = verify(conn, files)
            report(conn, files, seconds)
        for line in wrong[:20]:
            print(f"WRONG {line}")
        if wrong:
            print(f"{len(wrong)} differences")
            return 1
        print(f"verified: every one of {len(files)} files is there exactly once and correct")
        return 0
    finally:
        if keep:
            print(f"the server stays up: {server.dsn()}")
            print(f"stop it with: .venv/bin/python -m devkit.postgres {root} --stop")
        else:
            server.stop()
            shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

"""The job of the demo: digest one file, write the result and end the job in one commit."""

from __future__ import annotations

import hashlib
import os
import time
import zlib
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from psycopg_pool import ConnectionPool
from pydantic import BaseModel

import jobs

# Every so many files fail on their first attempt, to show a retry.
FLAKY_EVERY = 25


class SourceFile(BaseModel):
    """One file to digest."""

    path: Path


def flaky(path: Path) -> bool:
    """Whether the first attempt at this file fails on purpose."""
    return zlib.crc32(os.fsencode(path)) % FLAKY_EVERY == 0


def digest_file(path: Path) -> tuple[str, int]:
    """SHA-256 and number of lines of a file."""
    content = path.read_bytes()
    return hashlib.sha256(content).hexdigest(), content.count(b"\n")


@cache
def _pool() -> ConnectionPool[Any]:
    return ConnectionPool(os.environ["JOBS_DSN"], min_size=1, max_size=8, open=True)


@jobs.job(
    queue="files",
    tenant=jobs.NO_TENANT,
    idempotency_key=lambda source: str(source.path),
    retry=jobs.Retry(attempts=5, delay=timedelta(milliseconds=500)),
)
def digest(source: SourceFile, run: jobs.Run) -> None:
    """Digest one file. A plain function, so it runs in a thread."""
    if run.attempt == 1 and flaky(source.path):
        raise OSError(f"{source.path} is busy, on purpose")
    started = time.perf_counter()
    sha256, lines = digest_file(source.path)
    milliseconds = (time.perf_counter() - started) * 1000
    with _pool().connection() as conn, conn.transaction():
        conn.execute(
            "insert into demo_file (path, sha256, lines, milliseconds, attempt, claims)"
            " values (%s, %s, %s, %s, %s, %s)",
            (str(source.path), sha256, lines, milliseconds, run.attempt, run.claims),
        )
        run.complete(conn)

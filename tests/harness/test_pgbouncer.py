from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from devkit import pgbouncer
from devkit.rundir import run_dir
from tests.support.server import Clones

needs_pgbouncer = pytest.mark.skipif(pgbouncer.find() is None, reason="pgbouncer is not installed")


@pytest.fixture
def place() -> Iterator[Path]:
    with run_dir("sql-jobs-bouncer") as directory:
        yield directory


@needs_pgbouncer
def test_sessions_share_server_connections_between_transactions(
    clones: Clones, database: str, place: Path
) -> None:
    name = str(conninfo_to_dict(database)["dbname"])
    with pgbouncer.running(place, Path(clones.host)) as pooler:
        sessions = [
            psycopg.connect(pooler.dsn(name), autocommit=True, prepare_threshold=None)
            for _ in range(4)
        ]
        try:
            asked = [each.execute("select pg_backend_pid()").fetchone() for each in sessions]
        finally:
            for each in sessions:
                each.close()
        pid = pooler.pid
    assert len(set(asked)) <= 2
    assert not Path(f"/proc/{pid}").exists()


@needs_pgbouncer
def test_a_start_that_fails_says_why(clones: Clones, place: Path) -> None:
    bad = {"pool_mode": "nonsense"}
    with (
        pytest.raises(pgbouncer.PgBouncerError, match="pool_mode"),
        pgbouncer.running(place, Path(clones.host), settings=bad),
    ):
        pass


def test_a_missing_program_is_named(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgbouncer, "find", lambda: None)
    with (
        pytest.raises(pgbouncer.PgBouncerError, match="not installed"),
        pgbouncer.running(place, tmp_path),
    ):
        pass

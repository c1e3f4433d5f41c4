"""Installing and looking behind PgBouncer in transaction mode."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict

from devkit import pgbouncer
from devkit.rundir import run_dir
from jobs.errors import MigrationBusy
from jobs.inspect import list_jobs
from jobs.migrate import check, migrate, render
from jobs.shipped import shipped
from tests.schema.ship import Ship
from tests.support.catalog import dump
from tests.support.server import Clones

pytestmark = pytest.mark.skipif(pgbouncer.find() is None, reason="pgbouncer is not installed")


def test_everything_of_the_installer(
    clones: Clones, empty: str, owner: Connection[Any], ship: Ship
) -> None:
    name = str(conninfo_to_dict(empty)["dbname"])
    with (
        run_dir("sql-jobs-bouncer") as place,
        pgbouncer.running(place, Path(clones.host)) as pooler,
    ):
        dsn = pooler.dsn(name)
        assert render(dsn) == render()
        assert migrate(dsn) == list(shipped())
        assert migrate(dsn) == []
        assert check(dsn)
        # More tries on one connection than the driver takes to prepare a statement.
        before = dump(owner)
        ship.more("alter table jobs.job add column if not exists extra text;")
        owner.execute("begin; select count(*) from jobs.job")
        short = timedelta(milliseconds=1)
        with pytest.raises(MigrationBusy):
            migrate(dsn, lock_timeout=short, patience=timedelta(seconds=3))
        owner.execute("rollback")
        assert dump(owner) == before
        assert len(migrate(dsn)) == 1
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as conn:
            assert list_jobs(conn).jobs == []
            settings = conn.execute("select current_setting('lock_timeout')").fetchone()
            assert settings == ("0",), "nothing of the migration is left on the shared session"

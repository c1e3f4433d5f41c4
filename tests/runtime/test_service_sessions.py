"""What a scheduler, a relay and the commands make of a database that spells values its way."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

import jobs
import jobs.control as control
from jobs.connecting import session
from tests.runtime.relaying import stage
from tests.runtime.ticking import fired, scheduling, store
from tests.runtime.working import execute, until


@pytest.mark.parametrize(
    "setting",
    [
        "datestyle = 'German'",
        "datestyle = 'SQL, DMY'",
        "intervalstyle = 'iso_8601'",
        "intervalstyle = 'sql_standard'",
        "array_nulls = off",
    ],
)
async def test_they_serve_it_all_the_same(database: str, setting: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    stage(database, 1)
    store(database, "each second")
    execute(database, f'alter database "{name}" set {setting}')
    assert (await jobs.Relay(database).run_until_idle()).published == 1
    async with scheduling(database):
        await until(lambda: fired(database, "each second"), "a fire")
    with session(database) as conn:
        assert control.get_schedule(conn, "each second").every == timedelta(seconds=1)

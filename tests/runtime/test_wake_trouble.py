"""The wake where the server is in trouble: recovering, or with a full notification queue."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from devkit import postgres
from devkit.rundir import run_dir
from tests.runtime.test_wake import Tries, live, noop, said, tries  # noqa: F401  (a fixture)
from tests.runtime.working import Input, Table, serving, until
from tests.support.server import SETTINGS, install_schema


@pytest.mark.serial
async def test_a_server_that_comes_back_as_a_standby_and_is_promoted(
    durable_server: postgres.Server,
    durable_database: str,
    caplog: pytest.LogCaptureFixture,
    tries: Tries,  # noqa: F811
) -> None:
    """O-30: it answers, and refuses to listen until it is the primary."""
    with caplog.at_level(logging.DEBUG, "jobs.worker"):
        async with serving(durable_database, noop) as worker:
            await until(lambda: live(worker), "the probe to arrive")
            await asyncio.to_thread(durable_server.stop)
            await until(lambda: not live(worker), "the loss to be noticed")
            await asyncio.to_thread((durable_server.data / "standby.signal").touch)
            await asyncio.to_thread(durable_server.launch)
            await until(lambda: "during recovery" in caplog.text, "the refusal")
            assert not live(worker)
            with psycopg.connect(durable_server.dsn(), autocommit=True) as conn:
                conn.execute("select pg_promote()")
            back = time.monotonic()
            Table(durable_database).enqueue(noop)
            await until(lambda: worker.stats().completed == 1, "the job of the gap")
            await until(lambda: live(worker), "the ear to be back")
            assert tries.since(back) <= 1, "within one step of the backoff"
            Table(durable_database).enqueue(noop)
            await until(lambda: worker.stats().completed == 2, "another one")
    assert said(caplog, "jobs.worker.wake_lost").count("WARNING") == 1


def wakes(conn: Connection[Any]) -> int:
    """Rows of jobs.wake."""
    row = conn.execute("select count(*) from jobs.wake").fetchone()
    assert row is not None
    return int(row[0])


def usage(conn: Connection[Any]) -> float:
    """How full the notification queue of the server is, from 0 to 1."""
    row = conn.execute("select pg_notification_queue_usage()").fetchone()
    assert row is not None
    return float(row[0])


@pytest.mark.serial
def test_no_enqueue_notifies_while_the_queue_of_the_server_is_half_full() -> None:
    """A full one would fail the commit of whoever notifies."""
    settings = SETTINGS | {"max_notify_queue_pages": "64"}
    with run_dir("sql-jobs-notify") as place:
        try:
            server = postgres.start(place / "pg", durable=False, settings=settings)
        except RuntimeError:
            pytest.skip("the size of the notification queue can be set from PostgreSQL 17 on")
        with server:
            install_schema(server.dsn())
            with (
                psycopg.connect(server.dsn()) as lazy,
                psycopg.connect(server.dsn(), autocommit=True) as conn,
            ):
                lazy.execute("listen jobs_wake")
                lazy.commit()
                lazy.execute("select 1")  # a transaction that stays open reads no notification
                fill = "select pg_notify('jobs_wake', repeat('x', 7000) || n)"
                while usage(conn) < 0.55:
                    conn.execute(f"{fill} from generate_series(1, 4) as n".encode())
                noop.enqueue(conn, Input())
                noop.enqueue_many(conn, [Input()] * 3)
                assert wakes(conn) == 0, "they keep quiet, and do not fail"
                lazy.rollback()
                lazy.execute("select 1")
                lazy.rollback()
                while usage(conn) >= 0.5:  # the tail moves on with the next notification
                    conn.execute(fill.replace(" || n", "").encode())
                    lazy.execute("select 1")
                    lazy.rollback()
                noop.enqueue(conn, Input())
                assert wakes(conn) == 1

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import Connection
from psycopg.conninfo import conninfo_to_dict

from devkit.proxy import Proxy
from tests.support.server import Clones
from tests.support.waiting import until

Dial = Callable[[], Connection[Any]]


@pytest.fixture
def proxy(clones: Clones) -> Iterator[Proxy]:
    with Proxy(Path(clones.host)) as proxy:
        yield proxy


@pytest.fixture
def dial(proxy: Proxy, database: str) -> Iterator[Dial]:
    """Sessions on `database` through the proxy; TLS and GSS are off, so each chunk is protocol."""
    name = conninfo_to_dict(database)["dbname"]
    made = []

    def connect() -> Connection[Any]:
        dsn = f"{proxy.dsn(str(name))}?sslmode=disable&gssencmode=disable&connect_timeout=5"
        made.append(psycopg.connect(dsn, autocommit=True))
        return made[-1]

    yield connect
    for conn in made:
        conn.close()


def test_ok_forwards(proxy: Proxy, dial: Dial) -> None:
    one, two = dial(), dial()
    assert one.execute("select 1").fetchone() == (1,)
    assert two.execute("select repeat('x', 1000000)").fetchone() == ("x" * 1000000,)
    assert proxy.connections == 2
    one.close()
    until(lambda: proxy.connections == 1, "the proxy to see that one left")


def test_reset_ends_live_connections_only(proxy: Proxy, dial: Dial) -> None:
    one = dial()
    proxy.reset()
    with pytest.raises(psycopg.OperationalError):
        one.execute("select 1")
    assert dial().execute("select 1").fetchone() == (1,)


def test_drop_refuses_until_ok(proxy: Proxy, dial: Dial) -> None:
    one = dial()
    proxy.drop()
    with pytest.raises(psycopg.OperationalError):
        one.execute("select 1")
    with pytest.raises(psycopg.OperationalError):
        dial()
    proxy.ok()
    assert dial().execute("select 1").fetchone() == (1,)


def test_hang_says_nothing_and_then_goes_on(proxy: Proxy, dial: Dial) -> None:
    one = dial()
    raw = socket.socket(fileno=one.fileno())
    try:
        proxy.hang()
        one.pgconn.send_query(b"select 1")
        raw.settimeout(0.3)
        with pytest.raises(TimeoutError):
            raw.recv(1, socket.MSG_PEEK)
        proxy.ok()
        raw.settimeout(10)
        assert raw.recv(1, socket.MSG_PEEK)
    finally:
        raw.detach()


def test_delay_holds_each_chunk_back(proxy: Proxy, dial: Dial) -> None:
    one = dial()
    raw = socket.socket(fileno=one.fileno())
    try:
        proxy.delay(0.4)
        one.pgconn.send_query(b"select 1")
        raw.settimeout(0.3)
        with pytest.raises(TimeoutError):
            raw.recv(1, socket.MSG_PEEK)
        raw.settimeout(10)
        assert raw.recv(1, socket.MSG_PEEK)
    finally:
        raw.detach()


@pytest.mark.parametrize(("way", "committed"), [("down", 1), ("up", 0)])
def test_cut_around_a_commit(
    proxy: Proxy, dial: Dial, conn: Connection[Any], way: Any, committed: int
) -> None:
    conn.execute("create table public.t (n int)")
    one, other = dial(), dial()
    pid = one.info.backend_pid
    proxy.cut(way, keep=2, on=b"COMMIT")
    assert other.execute("select 1").fetchone() == (1,), "not the connection that commits"
    with pytest.raises(psycopg.OperationalError), one.transaction():
        one.execute("insert into public.t values (1)")
    assert proxy.was_cut.wait(10)
    gone = "select count(*) from pg_stat_activity where pid = %s"
    until(lambda: conn.execute(gone, [pid]).fetchone() == (0,), "the cut session to end")
    assert conn.execute("select count(*) from public.t").fetchone() == (committed,)
    assert other.execute("select 1").fetchone() == (1,)
    with other.transaction():  # one cut only
        other.execute("insert into public.t values (2)")


def test_a_server_that_is_down_looks_down(tmp_path: Path) -> None:
    with Proxy(tmp_path) as proxy, pytest.raises(psycopg.OperationalError):
        psycopg.connect(proxy.dsn("postgres") + "?connect_timeout=5")


def test_stop_ends_the_port(proxy: Proxy, dial: Dial) -> None:
    one = dial()
    proxy.stop()
    with pytest.raises(psycopg.OperationalError):
        one.execute("select 1")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port))

"""What `jobs migrate --print` prints does in psql what migrating does (O-51)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from devkit.postgres import find_bin
from jobs.errors import MigrationError
from jobs.migrate import check, migrate, render
from jobs.shipped import Migration, shipped
from tests.schema.ship import Ship
from tests.support.catalog import dump

pytestmark = pytest.mark.majors

PSQL = find_bin() / "psql"

# Everything that a splitter, a placeholder parser or psql itself might trip over. No newline and
# no line end at the end.
HOSTILE = r"""-- it's here; really
/* outer /* ; inner ' */ still; "outer */
create table jobs.hostile (
    id bigint not null, -- a "quote; and %s and %(name)s and :name and $1
    "a;b" text default E'\';',
    "%s" text default '%s;%%', ":name" text default ':name',
    plain text default 'it''s; :''name'' :"name"'
);
comment on table jobs.hostile is 'it''s; 100 % :name';
create function jobs.hostile_body() returns text language plpgsql as $fn$
declare
    colon text := 'a:name; %s';
begin
    -- it's a comment; in a body
    execute $$ select 1; $$;
    if 5 % 3 = 2 then
        return $q$it's $$ ; %s :name$q$ || colon;
    end if;
    return '';
end
$fn$;;
create table jobs.last_one (id bigint not null)  ; -- the end; isn't it"""


def run_psql(dsn: str, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Feed a script to psql, which reads no start-up file and has a variable called name."""
    if not PSQL.exists():
        pytest.skip(f"no psql beside the server's binaries ({PSQL.parent})")
    return subprocess.run(
        [PSQL, "--no-psqlrc", "--quiet", "--set", "other=1", *options, "--dbname", dsn],
        input=script,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def recorded(dsn: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as conn:
        return conn.execute(
            "select version, name, checksum, applied_by from jobs.migration order by version"
        ).fetchall()


def catalog(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as conn:
        return dump(conn)


@pytest.mark.parametrize("with_connection", [False, True])
def test_the_printed_script_installs_the_same(
    bare: Callable[[], str], with_connection: bool
) -> None:
    by_us, by_psql = bare(), bare()
    migrate(by_us)
    done = run_psql(by_psql, render(by_psql if with_connection else None))
    assert (done.returncode, done.stderr) == (0, "")
    assert catalog(by_psql) == catalog(by_us) != []
    assert recorded(by_psql) == recorded(by_us) != []
    assert check(by_psql) == [file for file in shipped() if file.version]


def test_an_upgrade_is_printed_alone(bare: Callable[[], str], ship: Ship) -> None:
    by_us, by_psql = bare(), bare()
    for dsn in (by_us, by_psql):
        migrate(dsn)
    ship.more("alter table jobs.job add column if not exists extra text;")
    script = render(by_psql)
    assert "create table jobs.job" not in script
    migrate(by_us)
    done = run_psql(by_psql, script)
    assert (done.returncode, done.stderr) == (0, "")
    assert catalog(by_psql) == catalog(by_us)
    assert recorded(by_psql) == recorded(by_us)
    assert render(by_psql) == "-- sql-jobs: nothing is pending\n"


def test_a_script_that_fails_leaves_nothing(bare: Callable[[], str], ship: Ship) -> None:
    ship.more("create table jobs.extra (id bigint);", "select 1 / 0;", "select 1;")
    dsn = bare()
    done = run_psql(dsn, render())
    assert done.returncode == 3
    assert "division by zero" in done.stderr
    assert catalog(dsn) == []


def test_a_script_printed_before_somebody_else_migrated_changes_nothing(
    bare: Callable[[], str],
) -> None:
    dsn = bare()
    script = render(dsn)
    migrate(dsn)
    before = catalog(dsn)
    done = run_psql(dsn, script)
    assert done.returncode == 3
    assert catalog(dsn) == before


def hostile(text: str, *, crlf: bool = False, bom: bool = False) -> bytes:
    data = text.replace("\n", "\r\n") if crlf else text
    return (b"\xef\xbb\xbf" if bom else b"") + data.encode()


@pytest.mark.parametrize("bom", [False, True], ids=["", "bom"])
@pytest.mark.parametrize("crlf", [False, True], ids=["lf", "crlf"])
def test_a_hostile_file_is_the_same_by_every_way(
    bare: Callable[[], str], ship: Ship, crlf: bool, bom: bool
) -> None:
    """Sent whole by us, printed by us and run by psql, and run by psql from the file itself."""
    (file,) = ship.more(hostile(HOSTILE, crlf=crlf, bom=bom))
    by_us, printed, by_psql = bare(), bare(), bare()
    migrate(by_us)
    with psycopg.connect(by_us) as conn:
        assert conn.execute("select jobs.hostile_body()").fetchone() == (
            "it's $$ ; %s :namea:name; %s",
        )
        assert conn.execute("select to_regclass('jobs.last_one') is not null").fetchone() == (True,)
        assert conn.execute(
            'insert into jobs.hostile (id) values (1) returning "a;b", "%s", ":name", plain',
        ).fetchone() == ("';", "%s;%%", ":name", "it's; :'name' :\"name\"")
    done = run_psql(printed, render())
    assert (done.returncode, done.stderr) == (0, "")
    ship(*ship.real)
    migrate(by_psql)
    # psql reads the file's bytes, byte order mark and carriage returns included.
    done = subprocess.run(
        [PSQL, "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", by_psql],
        input=hostile(HOSTILE, crlf=crlf, bom=bom),
        capture_output=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert catalog(by_us) == catalog(printed) == catalog(by_psql)
    assert recorded(by_us) == recorded(printed)
    assert recorded(by_us)[-1][2] == file.checksum


def test_literals_are_quoted(ship: Ship, owner: Connection[Any], empty: str) -> None:
    """Names come from file names and are tame; the script must not depend on it."""
    (file,) = ship.later("select 1;")
    odd = Migration(version=file.version, name="it's; \\ here", checksum="x'--", text=file.text)
    ship(*ship.real, odd)
    done = run_psql(empty, render())
    assert (done.returncode, done.stderr) == (0, "")
    row = owner.execute("select name, checksum from jobs.migration order by version").fetchall()[-1]
    assert row == ("it's; \\ here", "x'--")


def test_reading_what_is_pending_needs_no_right_to_install(
    owner: Connection[Any], role: Callable[[str], str], empty: str, ship: Ship
) -> None:
    migrate(owner)
    later = ship.more("create table jobs.extra (id bigint);")
    reader = role("reader")
    owner.execute(f'grant usage on schema jobs to "{reader}"'.encode())
    owner.execute(f'grant select on jobs.migration to "{reader}"'.encode())
    with psycopg.connect(empty, user=reader) as conn:
        assert later[0].text.decode() in render(conn)
        with pytest.raises(MigrationError, match="create on schema jobs"):
            migrate(conn)

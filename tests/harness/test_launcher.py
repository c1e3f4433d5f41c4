from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from devkit import postgres
from devkit.privileges import known_to_passwd, unprivileged
from devkit.process import end_group, spawn
from devkit.rundir import run_dir
from tests.support.server import ROOT
from tests.support.waiting import until

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux only: parent-death signal")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has privileges to give up")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users can reach and that is short enough for a socket."""
    with run_dir("sql-jobs-launcher") as directory:
        yield directory


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    with (
        run_dir("sql-jobs-launcher") as directory,
        postgres.start(directory / "pg", settings={"work_mem": "5MB"}) as server,
    ):
        yield server


def ask(dsn: str, statement: str) -> str:
    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(statement.encode()).fetchone()
    assert row is not None
    return str(row[0])


def ended(pid: int) -> bool:
    """Whether a process is gone, or dead and only waiting for its parent."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def fake_binaries(place: Path, script: str) -> Path:
    """A directory that passes for one of server binaries, in which each runs ``script``."""
    bindir = place / "fake"
    bindir.mkdir()
    for name in ("initdb", "postgres"):
        (bindir / name).write_text(f"#!/bin/sh\n{script}\n")
        (bindir / name).chmod(0o755)
    return bindir


class TestSettings:
    def test_a_durable_server_runs_with_what_was_asked_for(self, server: postgres.Server) -> None:
        assert ask(server.dsn(), "show work_mem") == "5MB"
        assert ask(server.dsn(), "show fsync") == "on"
        assert ask(server.dsn(), "show listen_addresses") == ""
        assert ask(server.dsn(), "show data_directory") == str(server.data)
        version = ask(server.dsn(), "show server_version_num")
        assert int(version) // 10000 == server.major

    def test_a_scratch_server_does_not_sync(self, database: str) -> None:
        assert ask(database, "show fsync") == "off"
        assert ask(database, "show full_page_writes") == "off"

    def test_libpq_variables_of_the_caller_do_not_reach_the_server(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
        with postgres.start(place / "pg", durable=False) as server:
            monkeypatch.delenv("PGCLIENTENCODING")  # our own libpq reads it too
            assert ask(server.dsn(), "show client_encoding") == "UTF8"


class TestFailures:
    def test_a_second_server_on_the_same_files_is_refused(self, server: postgres.Server) -> None:
        with pytest.raises(postgres.LaunchError, match=f"already running .*pid {server.pid}"):
            postgres.start(server.root)

    def test_a_bad_setting_is_reported_from_the_log(self, place: Path) -> None:
        with pytest.raises(postgres.LaunchError, match="no_such_setting"):
            postgres.start(place / "pg", settings={"no_such_setting": "1"})

    def test_pgbin_without_binaries_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PGBIN", str(tmp_path))
        with pytest.raises(postgres.LaunchError, match=f"PGBIN={tmp_path}: no `postgres`"):
            postgres.find_bin()

    def test_pgbin_wins(
        self, server: postgres.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "bin").symlink_to(server.bindir)
        monkeypatch.setenv("PGBIN", str(tmp_path / "bin"))
        monkeypatch.setenv("PATH", "")
        assert postgres.find_bin() == server.bindir

    def test_a_failing_initdb_is_quoted(self, place: Path) -> None:
        bindir = fake_binaries(place, "echo out of paper >&2; exit 1")
        with pytest.raises(postgres.LaunchError, match="out of paper"):
            postgres.start(place / "pg", bin=bindir)

    def test_a_start_killed_in_its_initdb_leaves_nothing_to_trip_over(self, place: Path) -> None:
        half_made = 'mkdir "$2"; echo 18 > "$2/PG_VERSION"; kill -9 $PPID'
        code = "import sys; from devkit import postgres\n"
        code += "postgres.start(sys.argv[1], bin=sys.argv[2])"
        arguments = [place / "pg", fake_binaries(place, half_made)]
        killed = subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, check=False)
        assert killed.returncode == -signal.SIGKILL
        with postgres.start(place / "pg", durable=False) as server:
            assert ask(server.dsn(), "select 1") == "1"
            assert sorted(path.name for path in server.root.iterdir()) == [
                ".s.PGSQL.5432",
                ".s.PGSQL.5432.lock",
                "data",
                "log",
            ]


class TestSocketPath:
    def test_a_long_path_gets_a_short_socket_that_stays_the_same(self, place: Path) -> None:
        deep = place / ("x" * 60) / ("y" * 40)
        with postgres.start(deep, durable=False) as server:
            assert not postgres.fits_socket_limit(deep)
            assert postgres.fits_socket_limit(server.socket_dir)
            before = server.dsn()
            server.restart()
            assert server.dsn() == before
            assert ask(before, "show data_directory") == str(deep / "data")
            short = server.socket_dir
        assert not short.exists()

    @pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
    def test_the_limit_is_the_kernels(self, spare: int, fits: bool) -> None:
        longest = postgres.SOCKET_PATH_LIMIT - len("/.s.PGSQL.5432")
        assert postgres.fits_socket_limit(Path("/" + "d" * (longest - 1 - spare))) is fits


class TestRestart:
    @pytest.mark.parametrize("mode", ["fast", "immediate", "kill"])
    def test_committed_rows_survive_and_open_work_does_not(
        self, server: postgres.Server, mode: postgres.Mode
    ) -> None:
        old = server.pid
        with psycopg.connect(server.dsn(), autocommit=True) as conn:
            conn.execute("drop table if exists t")
            conn.execute("create table t as select 1 as n")
        lost = psycopg.connect(server.dsn())
        lost.execute("insert into t values (2)")

        server.restart(mode)  # a killed one leaves a pid file that says "ready"

        assert server.pid != old
        assert ask(server.dsn(), "select array_agg(n) from t") == "[1]"
        with pytest.raises(psycopg.OperationalError):
            lost.execute("select 1")
        lost.close()

    def test_a_frozen_server_can_be_stopped(self, server: postgres.Server) -> None:
        os.kill(server.pid, signal.SIGSTOP)
        server.stop()
        assert not server.running
        server.launch()
        assert ask(server.dsn(), "select 1") == "1"


_PARENT = """
import sys
from devkit import postgres
server = postgres.start(sys.argv[1], durable=False, die_with_parent=sys.argv[2] == "die")
print("pid", server.pid, flush=True)
sys.stdin.read() if sys.argv[2] == "die" else server.detach()
"""


def test_the_command_line_detaches_and_stops(place: Path) -> None:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "devkit.postgres", str(place / "pg"), *options]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    started = run("--detach")
    assert started.returncode == 0, started.stderr
    assert ask(started.stdout.strip(), "select 1") == "1"
    again = run()
    assert again.returncode == 1
    assert "already running" in again.stderr
    assert run("--stop").returncode == 0
    assert postgres.running_pid(place / "pg") is None
    assert run("--stop").returncode == 1


@needs_linux
class TestParent:
    def start(self, place: Path, how: str) -> tuple[subprocess.Popen[str], int]:
        parent = subprocess.Popen(
            [sys.executable, "-c", _PARENT, str(place / "pg"), how],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert parent.stdout is not None
        return parent, int(parent.stdout.readline().split()[1])

    def test_a_killed_parent_takes_the_server_along(self, place: Path) -> None:
        parent, pid = self.start(place, "die")
        with parent:
            assert not ended(pid)
            parent.kill()
        until(lambda: ended(pid), "the server to end")
        assert "received fast shutdown request" in (place / "pg" / "log").read_text()

    def test_a_detached_server_outlives_its_parent(self, place: Path) -> None:
        parent, pid = self.start(place, "stay")
        with parent:
            assert parent.wait(30) == 0
        assert postgres.running_pid(place / "pg") == pid
        assert postgres.stop_running(place / "pg")
        assert ended(pid)
        assert not postgres.stop_running(place / "pg")

    def test_a_thread_that_started_it_may_end(self, place: Path) -> None:
        made: list[postgres.Server] = []
        thread = threading.Thread(
            target=lambda: made.append(postgres.start(place / "pg", durable=False))
        )
        thread.start()
        thread.join()
        with made[0] as server:
            # A signal sent at the thread's end would have come before this round trip.
            assert ask(server.dsn(), "select 1") == "1"
            assert "shutdown request" not in server.log.read_text()

    def test_a_dead_runs_directory_is_removed_with_its_server(self, place: Path) -> None:
        code = (
            "import sys; from pathlib import Path; from devkit import postgres, rundir\n"
            "with rundir.run_dir('x', Path(sys.argv[1])) as d:\n"
            "    s = postgres.start(d / 'pg', durable=False, die_with_parent=False)\n"
            "    print(d, s.pid, flush=True); sys.stdin.read()"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, str(place)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as owner:
            assert owner.stdout is not None
            left, pid = owner.stdout.readline().split()
            with run_dir("x", place):
                assert Path(left).exists(), "its owner lives"
                assert not ended(int(pid))
            owner.kill()
        with run_dir("x", place) as mine:
            assert not Path(left).exists()
            assert ended(int(pid))
        assert not mine.exists()


class TestPrivileges:
    def test_the_command_line_works_as_an_ordinary_user(self, place: Path) -> None:
        user = unprivileged("auto" if os.geteuid() else "namespace")
        log = place / "cli"
        check = "import os; assert os.geteuid() != 0; import runpy; "
        check += "runpy.run_module('devkit.postgres', run_name='__main__', alter_sys=True)"
        process = spawn(
            [sys.executable, "-c", check, place / "pg"],
            stdout=log,
            env={k: v for k, v in os.environ.items() if not k.startswith("COV_")},
            cwd=ROOT,
            user=user,
            death="KILL",
        )
        try:
            until(lambda: "postgresql://" in log.read_text(), f"a DSN in {log}")
            assert ask(log.read_text().strip(), "select 1") == "1"
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
            assert postgres.running_pid(place / "pg") is None
        finally:
            end_group(process)

    @needs_root
    def test_root_becomes_a_user_that_has_a_name(self) -> None:
        prefix = unprivileged("namespace").prefix
        seen = subprocess.run([*prefix, "id", "-u"], capture_output=True, text=True, check=True)
        assert int(seen.stdout) != 0
        assert known_to_passwd(int(seen.stdout))

    @needs_root
    def test_without_namespaces_unreadable_binaries_are_copied(self, place: Path) -> None:
        bindir = postgres.find_bin()
        if bindir.is_relative_to("/usr"):  # not self-contained: nothing to copy, readable anyway
            hidden = bindir
        else:
            vault = place / "vault"
            package = bindir.parents[1]
            shutil.copytree(bindir.parent, vault / "package" / bindir.parent.name, symlinks=True)
            libs = package.with_name(f"{package.name}.libs")
            if libs.is_dir():
                shutil.copytree(libs, vault / libs.name)
                (vault / "package").rename(vault / package.name)
            vault.chmod(0o700)
            hidden = next(vault.glob("*/*/bin"))
        with postgres.start(
            place / "pg", bin=hidden, durable=False, privileges="setpriv"
        ) as server:
            assert ask(server.dsn(), "select 1") == "1"
            owner = Path(f"/proc/{server.pid}").stat().st_uid
            assert owner != 0
            assert (server.bindir == hidden) == bindir.is_relative_to("/usr")

    @needs_root
    def test_a_place_that_the_other_user_cannot_reach_is_named(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o700)
        with pytest.raises(postgres.LaunchError, match=f"{tmp_path}.* cannot be reached"):
            postgres.start(tmp_path / "pg", privileges="setpriv")

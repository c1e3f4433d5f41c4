"""A subject as the benchmark handles it: an interpreter, a template database, processes."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.arena import Arena, database_of
from bench.environments import UnavailableError, environment
from bench.subjects.common import Subject
from devkit.process import end_group, spawn

ROOT = Path(__file__).resolve().parents[1]
_CALL_SECONDS = 300


class Contestant:
    """One library in this run."""

    def __init__(self, arena: Arena, subject: Subject, cache: Path) -> None:
        """Install the library and its schema. Raises UnavailableError."""
        self.arena = arena
        self.subject = subject
        self.name = subject.name
        if subject.requirements is None:
            self.python = sys.executable
        else:
            self.python = environment(
                cache, subject.name, subject.requirements, subject.oldest_python
            )
        self.versions = self.call("", "versions")
        self.template = f"bench_{subject.name.replace('-', '_')}"
        self.call(arena.create(self.template), "setup")

    def _command(self, verb: str, dsn: str, options: dict[str, object]) -> list[str]:
        given = [part for key, value in options.items() for part in (f"--{key}", str(value))]
        command = [self.python, "-m", "bench.subjects.drive", self.name, verb]
        return [*command, "--dsn", dsn, *given]

    def _env(self, folder: Path | None) -> dict[str, str]:
        paths = [str(ROOT), str(ROOT / "generated")]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
        return env | ({"BENCH_DIR": str(folder)} if folder else {})

    def call(self, dsn: str, verb: str, **options: object) -> dict[str, Any]:
        """Have it do something in a process, and return the answer. Raises UnavailableError."""
        try:
            done = subprocess.run(
                self._command(verb, dsn, options),
                env=self._env(None),
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=_CALL_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"{verb} took longer than {_CALL_SECONDS} s") from None
        if done.returncode:
            raise UnavailableError(f"{verb} failed: {last_line(done.stderr)}")
        answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return answer

    @contextmanager
    def turn(self, template: str = "") -> Iterator[Turn]:
        """A clone of the subject's database (or of one made from it) and a folder for its marks."""
        with self.arena.clone(template or self.template) as dsn, self.beside(dsn) as turn:
            yield turn

    @contextmanager
    def beside(self, dsn: str) -> Iterator[Turn]:
        """A folder for marks, and workers on a database that stays."""
        with ExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix="sql-jobs-bench-turn-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            yield stack.enter_context(Turn(self, dsn, folder))

    def load(self, kind: str, count: int) -> str:
        """Name of a template with that many jobs waiting, made once."""
        name = f"{self.template}_{kind}_{count}"
        if not self.arena.admin.execute(
            "select from pg_database where datname = %s", [name]
        ).fetchone():
            dsn = self.arena.create(name, self.template)
            try:
                self.call(dsn, "many", kind=kind, count=count)
            except UnavailableError:
                self.arena.drop(name)
                raise
            self.arena.settle(dsn)
        return name


class Turn:
    """One database, one folder of marks, and the processes that work there."""

    def __init__(self, contestant: Contestant, dsn: str, folder: Path) -> None:
        self.contestant = contestant
        self.dsn = dsn
        self.database = database_of(dsn)
        self.folder = folder
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *_: object) -> None:
        while self._workers:
            end_group(self._workers.pop())

    def work(self, profile: str) -> subprocess.Popen[bytes]:
        """Start a worker process, which ends with the turn."""
        command = self.contestant._command("work", self.dsn, {"profile": profile})
        worker = spawn(
            command,
            stdout=self.folder / "log",
            env=self.contestant._env(self.folder),
            cwd=ROOT,
            death="KILL",
        )
        self._workers.append(worker)
        return worker

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """SIGKILL, as a crash."""
        self._workers.remove(worker)
        end_group(worker)

    def let_go(self) -> None:
        """Jobs that hang when they start end at once from now on."""
        (self.folder / "let-go").touch()

    def check(self) -> None:
        """Raises UnavailableError when a worker has ended by itself."""
        for worker in self._workers:
            if worker.poll() is not None:
                raise UnavailableError(f"the worker ended: {last_line(self.log())}")

    def log(self) -> str:
        """What the workers have written."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def count(self, marks: str = "done") -> int:
        """How many records of a kind there are."""
        path = self.folder / marks
        return path.stat().st_size // 8 if path.exists() else 0

    def marks(self, name: str = "done") -> list[float]:
        """The records, sorted."""
        path = self.folder / name
        return sorted(each[0] for each in struct.iter_unpack("d", path.read_bytes()))

    def until(self, count: int, seconds: float, marks: str = "done") -> bool:
        """Wait for that many records; False when the time is up first."""
        deadline = time.monotonic() + seconds
        while self.count(marks) < count:
            self.check()
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True


def last_line(text: str) -> str:
    """The last line that says something, bounded."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"

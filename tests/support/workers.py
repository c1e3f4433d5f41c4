"""Real worker processes for tests: started, watched, and proven to have ended."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from devkit.process import end_group, group_alive, spawn
from tests.support.server import ROOT
from tests.support.waiting import PATIENCE_SECONDS, until


class WorkerProcess:
    """One process of ours, with its output in two files.

    It leads a process group of its own and is killed when the test process dies.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        directory: Path,
        name: str,
        env: Mapping[str, str],
    ) -> None:
        self.stdout = directory / f"{name}.out"
        self.stderr = directory / f"{name}.err"
        self.command = [str(part) for part in command]
        self._process = spawn(
            self.command,
            stdout=self.stdout,
            stderr=self.stderr,
            env=_clean_environment() | dict(env),
            cwd=ROOT,
            death="KILL",
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status; minus the signal's number when one ended it; None while it runs."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process itself, not to its children."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL and wait: nothing of it runs when this returns."""
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self, timeout: float = PATIENCE_SECONDS) -> int:
        """Its exit status, once it has ended.

        Raises AssertionError with its output when it has not within ``timeout`` seconds.
        """
        self._until(lambda: self.returncode is not None, "end", timeout)
        return self._process.wait()

    def wait_for_output(self, text: str, timeout: float = PATIENCE_SECONDS) -> None:
        """Wait until it has written ``text`` to either file.

        Raises AssertionError when it ends first or has not within ``timeout`` seconds.
        """

        def written() -> bool:
            ended = self.returncode is not None  # read first: what it wrote last must count
            if text in self.output():
                return True
            if ended:
                raise AssertionError(f"ended before it wrote {text!r}: {self.describe()}")
            return False

        self._until(written, f"write {text!r}", timeout)

    def output(self) -> str:
        """Everything it has written so far."""
        return "".join(path.read_text(errors="replace") for path in (self.stdout, self.stderr))

    def describe(self) -> str:
        """The command, its state and the end of its output, for messages."""
        state = "running" if self.returncode is None else f"exit {self.returncode}"
        return f"{' '.join(self.command)} [{state}]\n{self.output()[-4000:]}"

    def end(self) -> None:
        """Kill it with its descendants and prove that none of them is left."""
        end_group(self._process)
        # Its orphans are reaped by another process.
        self._until(lambda: not group_alive(self.pid), "end with its children", PATIENCE_SECONDS)

    def _until(self, condition: Callable[[], bool], what: str, timeout: float) -> None:
        try:
            until(condition, f"{self.command} to {what}", timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe()}") from None


def _clean_environment() -> dict[str, str]:
    """Ours without what would change how a worker connects or how it is measured."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "PYTEST", "COV_"))}
    roots = os.pathsep.join([str(ROOT), str(ROOT / "generated")])
    return kept | {"PYTHONPATH": roots, "PYTHONUNBUFFERED": "1"}


def python_command(*arguments: str) -> list[str]:
    """The interpreter of the tests with arguments, warnings shown."""
    return [sys.executable, "-W", "default", *arguments]

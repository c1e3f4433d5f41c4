"""Sessions that a test drives step by step, each in its own thread.

A test of concurrency says what each session does and in which order; that a session *waits* is
proven by the server's own view of it (`Session.blocked`), never by time passing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
from psycopg import Connection

P = ParamSpec("P")
T = TypeVar("T")

_PATIENCE_SECONDS = 15.0
_POLL_SECONDS = 0.005

_WAIT = """
    select a.state, a.wait_event_type, a.wait_event, pg_catalog.pg_blocking_pids(a.pid),
        (
            select l.locktype || ' ' || l.mode
            from pg_catalog.pg_locks as l
            where l.pid = a.pid and not l.granted
            limit 1
        )
    from pg_catalog.pg_stat_activity as a
    where a.pid = %s
"""


@dataclass(frozen=True)
class Block:
    """A proven wait: who holds the lock (backend pids) and which lock is waited for."""

    by: frozenset[int]
    event: str
    lock: str


class Session:
    """One database session driven in its own thread.

    ``conn`` belongs to the session's thread while a step runs; a test may use it between steps.
    ``observer`` is another autocommit connection to the same server, used from the test's thread.
    """

    def __init__(
        self, conn: Connection[Any], observer: Connection[Any], name: str = "session"
    ) -> None:
        self.conn = conn
        self.name = name
        self.pid = conn.info.backend_pid
        self._observer = observer
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._step: Future[Any] | None = None
        self._seen = True

    def start(
        self, fn: Callable[Concatenate[Connection[Any], P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Begin ``fn(conn, *args, **kwargs)`` in the session's thread and return its future.

        Raises AssertionError while the step before is still running.
        """
        if self._step is not None and not self._step.done():
            raise AssertionError(f"{self.name}: the step before has not ended")
        self._raise_unseen()
        future = self._thread.submit(fn, self.conn, *args, **kwargs)
        self._step, self._seen = future, False
        return future

    def run(
        self, fn: Callable[Concatenate[Connection[Any], P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`start` and `result` in one: for steps that must not wait for anybody."""
        self.start(fn, *args, **kwargs)
        answer: T = self.result()
        return answer

    def execute(self, statement: str, params: Any = None) -> Future[list[Any]]:
        """Begin one statement given as text; the future's value are its rows (empty for none)."""

        def step(conn: Connection[Any]) -> list[Any]:
            cursor = conn.execute(statement.encode(), params)
            return cursor.fetchall() if cursor.description else []

        return self.start(step)

    def blocked(self, by: Session | None = None, timeout: float = _PATIENCE_SECONDS) -> Block:
        """Prove that the running step waits for a lock, and of whom.

        by: the session that must be (among) the holders.
        timeout: seconds until the server must show the wait.
        Raises AssertionError when the step ends, fails, or does not come to wait.
        """
        if self._step is None:
            raise AssertionError(f"{self.name}: nothing was started")
        deadline = time.monotonic() + timeout
        row: Any = None
        while time.monotonic() < deadline:
            row = self._observer.execute(_WAIT, [self.pid]).fetchone()
            if self._step.done():
                ended = self._step.exception() or self._step.result()
                raise AssertionError(f"{self.name}: expected to wait, but it ended with {ended!r}")
            if row is not None:
                _, kind, event, pids, lock = row
                holders = frozenset(pids)
                if kind == "Lock" and holders and lock and (by is None or by.pid in holders):
                    return Block(holders, event, lock)
            time.sleep(_POLL_SECONDS)
        wanted = "" if by is None else f" for {by.name} (pid {by.pid})"
        raise AssertionError(f"{self.name}: does not wait for a lock{wanted}; server shows {row}")

    def result(self, timeout: float = _PATIENCE_SECONDS) -> Any:
        """The value of the running step, or its exception raised.

        Raises AssertionError, with what the server says the session does, when it does not end
        within ``timeout`` seconds.
        """
        if self._step is None:
            raise AssertionError(f"{self.name}: nothing was started")
        try:
            self._step.exception(timeout)
        except FutureTimeoutError:
            row = self._observer.execute(_WAIT, [self.pid]).fetchone()
            raise AssertionError(f"{self.name}: still running; server shows {row}") from None
        self._seen = True
        return self._step.result()

    def done(self) -> bool:
        """Whether the started step has ended (with a value or an exception)."""
        return self._step is not None and self._step.done()

    def close(self) -> None:
        """End the session. Raises the exception of a last step that nobody looked at."""
        if self._step is not None and not self._step.done():
            self._cancel(self._step)
        self._thread.shutdown(wait=True)
        self.conn.close()
        self._raise_unseen()

    def _cancel(self, step: Future[Any]) -> None:
        try:
            self.conn.cancel_safe(timeout=_PATIENCE_SECONDS)
            error = step.exception(_PATIENCE_SECONDS)
        except (psycopg.Error, FutureTimeoutError):
            self._observer.execute("select pg_catalog.pg_terminate_backend(%s)", [self.pid])
            error = step.exception(_PATIENCE_SECONDS)
        self._seen = isinstance(error, psycopg.errors.QueryCanceled | psycopg.errors.AdminShutdown)

    def _raise_unseen(self) -> None:
        if not self._seen and self._step is not None and (error := self._step.exception()):
            self._seen = True
            raise AssertionError(f"{self.name}: a step failed and nobody asked for it") from error

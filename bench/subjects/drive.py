"""The process in which a subject does something: ``python -m bench.subjects.drive NAME VERB ...``.

The last line of its output is a JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import platform
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from bench.subjects.common import BATCH, Subject


def load(name: str) -> Subject:
    """The subject of that name."""
    module = importlib.import_module(f"bench.subjects.{name.replace('-', '_')}_subject")
    subject: Subject = module.SUBJECT
    return subject


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _versions(subject: Subject) -> dict[str, str]:
    names = (subject.distribution, "psycopg", "asyncpg", "SQLAlchemy", "uvloop", "pydantic")
    found = {name: known for name in names if (known := _version(name))}
    return found | {"Python": platform.python_version()}


async def _produce(
    subject: Subject, dsn: str, act: Callable[[Any], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    async with subject.producer(dsn) as producer:
        return await act(producer)


def _one(count: int) -> Callable[[Any], Awaitable[dict[str, Any]]]:
    async def act(producer: Any) -> dict[str, Any]:
        await producer.one("noop", -1)  # connections, prepared statements
        began = time.perf_counter()
        for value in range(count):
            await producer.one("noop", value)
        return {"seconds": time.perf_counter() - began}

    return act


def _many(kind: str, count: int) -> Callable[[Any], Awaitable[dict[str, Any]]]:
    async def act(producer: Any) -> dict[str, Any]:
        began = time.perf_counter()
        for start in range(0, count, BATCH):
            await producer.many(kind, range(start, min(count, start + BATCH)))
        return {"seconds": time.perf_counter() - began}

    return act


def _copy(count: int) -> Callable[[Any], Awaitable[dict[str, Any]]]:
    async def act(producer: Any) -> dict[str, Any]:
        if not hasattr(producer, "copy"):
            return {}
        began = time.perf_counter()
        await producer.copy("noop", range(count))
        return {"seconds": time.perf_counter() - began}

    return act


def _stamps(count: int, gap: float) -> Callable[[Any], Awaitable[dict[str, Any]]]:
    async def act(producer: Any) -> dict[str, Any]:
        due = time.monotonic() + gap
        for _ in range(count):
            # An open schedule: a slow enqueue does not thin out the load.
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += gap
            await producer.one("stamp", time.monotonic())
        return {}

    return act


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("subject")
    parser.add_argument("verb")
    parser.add_argument("--dsn", default="")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--kind", default="noop")
    parser.add_argument("--gap", type=float, default=0.0)
    parser.add_argument("--profile", default="defaults")
    args = parser.parse_args()
    subject = load(args.subject)
    producing = {
        "one": lambda: _one(args.count),
        "many": lambda: _many(args.kind, args.count),
        "copy": lambda: _copy(args.count),
        "stamps": lambda: _stamps(args.count, args.gap),
    }
    answer: dict[str, Any] = {}
    if args.verb in producing:
        answer = asyncio.run(_produce(subject, args.dsn, producing[args.verb]()))
    elif args.verb == "versions":
        answer = _versions(subject)
    elif args.verb == "setup":
        subject.setup(args.dsn)
    elif args.verb == "import":
        began = time.perf_counter()
        importlib.import_module(subject.module)
        answer = {"seconds": time.perf_counter() - began}
    elif args.verb == "work":
        subject.run(args.dsn, args.profile)
    else:
        parser.error(f"no such verb: {args.verb}")
    print("\n" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

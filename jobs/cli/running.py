"""What a command that runs jobs gives to them: processes, and sessions that carry their tenant."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from psycopg_pool import AsyncConnectionPool, ConnectionPool

from jobs.scoped import TENANT_SETTING


def add_running(parser: argparse.ArgumentParser) -> None:
    """Give a command the options --processes, --pool, --pool-dsn and --tenant-setting."""
    parser.add_argument(
        "--processes",
        type=int,
        metavar="N",
        help="how many processes there are for jobs that run in one (default: one for each "
        "processor)",
    )
    parser.add_argument(
        "--pool",
        type=int,
        default=0,
        metavar="N",
        help="how many sessions of each flavour jobs may use at the same time through "
        "run.connection() (default: none)",
    )
    parser.add_argument(
        "--pool-dsn",
        metavar="DSN",
        help="where those connect, as a role that row-level security binds (default: as --dsn)",
    )
    parser.add_argument(
        "--tenant-setting",
        default=TENANT_SETTING,
        metavar="NAME",
        help=f"the setting that carries the tenant there (default: {TENANT_SETTING})",
    )


@asynccontextmanager
async def running(args: argparse.Namespace, dsn: str) -> AsyncIterator[dict[str, Any]]:
    """The arguments of `jobs.Worker` that the options ask for; pools are open in the block."""
    given: dict[str, Any] = {
        "processes": args.processes,
        "tenant_setting": args.tenant_setting,
    }
    async with AsyncExitStack() as stack:
        if args.pool > 0:
            place, most = args.pool_dsn or dsn, args.pool
            # They connect when a job first asks: where they cannot, that job fails and not all.
            given["pool"] = await stack.enter_async_context(
                AsyncConnectionPool[Any](place, min_size=0, max_size=most, open=False)
            )
            given["sync_pool"] = stack.enter_context(
                ConnectionPool[Any](place, min_size=0, max_size=most, open=True)
            )
        yield given

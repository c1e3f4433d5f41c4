"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import sys
import time
from typing import Any

import psycopg

_SETTINGS = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_sync_method",
    "shared_buffers",
    "max_wal_size",
    "max_connections",
    "autovacuum",
    "jit",
    "shared_preload_libraries",
    "pg_stat_statements.track",
)


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def describe(admin: psycopg.Connection[Any]) -> dict[str, Any]:
    """Machine, interpreter and server settings."""
    rows = admin.execute(
        "select name, current_setting(name) from pg_settings where name = any(%s)",
        [list(_SETTINGS)],
    )
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_gib": _memory_gib(),
        "system": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
        "psycopg": psycopg.__version__,
        "libpq": psycopg.pq.version(),
        "settings": dict(rows.fetchall()),
        "at": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


class Load:
    """How much of the processors was used between two looks, by everybody."""

    def __init__(self) -> None:
        self._before = self._look()
        self._began = os.getloadavg()[0]

    @staticmethod
    def _look() -> tuple[int, int]:
        with open("/proc/stat") as lines:
            times = [int(part) for part in lines.readline().split()[1:9]]
        return times[3] + times[4], sum(times)

    def used(self) -> dict[str, float]:
        """Load averages, and the share of the processors that was not idle since it began."""
        (idle, total), (idle_before, total_before) = self._look(), self._before
        return {
            "load_average_before": round(self._began, 2),
            "load_average_after": round(os.getloadavg()[0], 2),
            "busy": round(1 - (idle - idle_before) / max(total - total_before, 1), 2),
        }

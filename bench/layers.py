"""Where a worker's time goes while it drains no-op jobs: processor time a job, layer by layer.

    python -m bench.layers [--jobs 100000] [--slots 500]

Samples a worker process with py-spy (in an environment of its own) and adds the samples up by
layer: each belongs to the innermost frame that a rule below knows, so what the standard library
does (asyncio's included) is booked to its caller. Processor time is the kernel's count for the
process, which other load on the machine changes little. Beside it, what the server spent on both
statements.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from bench.arena import arena
from bench.contestant import ROOT
from bench.environments import environment
from bench.run import OURS, Run
from bench.sizes import QUICK

_REQUIREMENTS = ("py-spy==0.4.1",)
_RATE = 500
# The first that matches a frame ("function (file:line)"), innermost frame first.
LAYERS = (
    ("arguments as text", re.compile(r"jobs_sql/_encode\.py")),
    ("driver: send, wait, decode rows", re.compile(r"psycopg|jobs_sql/")),
    ("input to a model", re.compile(r"jobs/(payload|handle)\.py")),
    ("the job itself, its mark", re.compile(r"bench/subjects/")),
    ("records of a job: Held, Run", re.compile(r"^__init__ \(jobs/worker/held|jobs/run\.py")),
    ("list of held jobs", re.compile(r"jobs/worker/held\.py")),
    ("runners: job after job", re.compile(r"jobs/worker/(crew|runner)\.py")),
    ("around the function: outcome, deadline", re.compile(r"jobs/worker/execution\.py")),
    ("settler: batches, matching answers", re.compile(r"jobs/worker/settler\.py")),
    ("claimer", re.compile(r"(jobs/worker/(claimer|demand|lane)|jobs/service/pace)\.py")),
    ("connection: deadlines", re.compile(r"jobs/service/link\.py")),
    ("worker: order, counts, logs", re.compile(r"jobs/worker/worker\.py")),
    ("renewer and its thread", re.compile(r"jobs/worker/(renewer|loopwatch)\.py")),
)
# Called by nothing of ours.
_REST = "event loop: callbacks, steps of tasks"


def layer_of(stack: str) -> str:
    """The layer of one sampled stack, outermost frame first, joined by semicolons."""
    for frame in reversed(stack.split(";")):
        for name, rule in LAYERS:
            if rule.search(frame):
                return name
    return _REST


def by_layer(lines: Iterable[str]) -> Counter[str]:
    """Samples a layer, from py-spy's raw format."""
    found: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        if stack:
            found[layer_of(stack)] += int(count)
    return found


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run from a command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--slots", type=int, choices=(100, 500), default=500)
    parser.add_argument("--cache", type=Path, default=ROOT / ".bench" / "environments")
    args = parser.parse_args()
    spy = Path(environment(args.cache, "profile", _REQUIREMENTS)).with_name("py-spy")
    with arena() as place, tempfile.TemporaryDirectory() as folder:
        run = Run(place, QUICK)
        run.enter([OURS], args.cache)
        raw = Path(folder) / "raw"
        with run.ours.turn(run.ours.load("noop", args.jobs)) as turn:
            place.reset()
            worker = turn.work("tuned" if args.slots == 500 else "batch100")
            turn.until(1, 30)
            command = [str(spy), "record", "--pid", str(worker.pid), "--rate", str(_RATE)]
            command += ["--format", "raw", "--output", str(raw), "--nonblocking"]
            sampler = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            done, spent, began = turn.count(), _cpu_seconds(worker.pid), time.monotonic()
            turn.until(args.jobs, 120)
            done, spent = turn.count() - done, _cpu_seconds(worker.pid) - spent
            seconds = time.monotonic() - began
            sampler.send_signal(signal.SIGINT)
            sampler.wait()
            served = place.admin.execute(
                """
                select substring(s.query from 'jobs:([a-z_]+)'), s.calls, s.total_exec_time
                from pg_stat_statements as s
                inner join pg_database as d on d.oid = s.dbid
                where d.datname = %s and s.query ~ 'jobs:(claim|settle)'
                """,
                [turn.database],
            ).fetchall()
        samples = by_layer(raw.read_text().splitlines())
    a_job = 1e6 * spent / done
    print("| layer | share | µs a job |\n| --- | --- | --- |", file=sys.stdout)
    for name, count in samples.most_common():
        share = count / samples.total()
        print(f"| {name} | {100 * share:.0f} % | {share * a_job:.1f} |")
    print(f"| processor time of the worker | | {a_job:.1f} |")
    print(f"| wall clock ({done / seconds:,.0f} jobs/s) | | {1e6 * seconds / done:.1f} |")
    for name, calls, milliseconds in served:
        print(f"| server: {name}, {calls} calls | | {1000 * milliseconds / args.jobs:.1f} |")


if __name__ == "__main__":
    main()

"""Measure the library beside its peers and beside the physical limit.

    python -m bench                         everything, at least three rounds
    python -m bench --quick                 small counts, one round
    python -m bench --only drain,latency    some measurements; the report keeps the others' files
    python -m bench --peers none            ours alone

Starts a durable server of its own, makes a virtual environment for each peer (kept in --cache), and
writes JSON files, report.md and report.png to --out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench import report
from bench.arena import arena
from bench.contestant import ROOT, last_line
from bench.environments import UnavailableError, environment
from bench.machine import Load, describe
from bench.measures import MEASURES
from bench.run import OURS, PEERS, Run, say
from bench.sizes import FULL, QUICK, Sizes

_PLOT_REQUIREMENTS = ("matplotlib==3.10.7",)


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="small counts, one round")
    parser.add_argument("--only", default=",".join(MEASURES), help="names, comma between")
    parser.add_argument("--peers", default=",".join(PEERS), help="names, comma between, or none")
    parser.add_argument("--rounds", type=int, help="default 3, quick 1")
    parser.add_argument("--out", type=Path, default=ROOT / ".bench" / "results")
    parser.add_argument("--cache", type=Path, default=ROOT / ".bench" / "environments")
    parser.add_argument("--no-plot", action="store_true", help="no report.png")
    args = parser.parse_args(given)
    args.only = args.only.split(",")
    args.peers = [] if args.peers == "none" else args.peers.split(",")
    for unknown in [*({*args.only} - {*MEASURES}), *({*args.peers} - {*PEERS})]:
        parser.error(f"no such measurement or peer: {unknown}")
    return args


def measure(
    only: list[str], peers: list[str], sizes: Sizes, out: Path, cache: Path
) -> list[dict[str, object]]:
    """Take the measurements, write their files and report.md; return the parts of the report."""
    with arena() as place:
        run = Run(place, sizes)
        run.enter([OURS, *peers], cache)
        if OURS in run.absent:
            raise SystemExit(f"the library itself cannot be run: {run.absent[OURS]}")
        for name in only:
            say(f"== {name}")
            began, load = time.monotonic(), Load()
            run.figures.clear()
            try:
                MEASURES[name](run)
            finally:  # an interrupted measurement keeps the rounds it has
                context = {
                    "machine": describe(place.admin),
                    "sizes": dataclasses.asdict(sizes),
                    "versions": {each.name: each.versions for each in run.contestants},
                    "absent": run.absent,
                    "load": load.used(),
                    "seconds": time.monotonic() - began,
                }
                report.save(out, name, run.figures, context)
    parts = report.load(out, MEASURES)
    (out / "report.md").write_text(report.markdown(parts))
    return parts


def plot(parts: list[dict[str, object]], out: Path, cache: Path) -> str:
    """Draw report.png in an environment with matplotlib; return why not, or nothing."""
    try:
        python = environment(cache, "plot", _PLOT_REQUIREMENTS)
    except UnavailableError as error:
        return str(error)
    figures = out / "figures.json"
    figures.write_text(json.dumps([each.as_json() for each in report.figures_of(parts)]))
    program = Path(__file__).with_name("plot.py")
    done = subprocess.run(
        [python, str(program), str(figures), str(out / "report.png")],
        capture_output=True,
        text=True,
    )
    return last_line(done.stderr) if done.returncode else ""


def main(given: list[str] | None = None) -> int:
    """Run from a command line."""
    args = _arguments(given)
    sizes = QUICK if args.quick else FULL
    if args.rounds:
        sizes = dataclasses.replace(sizes, rounds=args.rounds)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    parts = measure(args.only, args.peers, sizes, args.out, args.cache)
    if not args.no_plot and (why := plot(parts, args.out, args.cache)):
        say(f"no report.png: {why}")
    print((args.out / "report.md").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())

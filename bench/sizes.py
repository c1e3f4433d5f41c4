"""How much each measurement does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Counts and seconds.

    Attributes:
        rounds: Rounds of every measurement; in each, every subject has its turn.
        share: Factor on the counts that a subject names for itself.
        cap: Seconds after which a drain is cut off and its rate so far taken.
        batches: Slots of our worker, and batch of pgbench, where the two are compared.
        near: Jobs 25 ms apart; far: jobs a second apart.
        idle: Seconds of watching idle workers.
        rows: Finished and scheduled rows, each; history_drain: jobs of a drain beside them;
            history_rounds: rounds of that.
        snapshot: Jobs drained under a held snapshot.
        blocked: Jobs that are blocked on one key.
        waiting: Jobs that wait at the same time.
        settle_seconds: From the start of a worker until it counts as idle.
    """

    rounds: int = 3
    share: float = 1.0
    cap: float = 6.0
    batches: tuple[int, ...] = (100, 500)
    near: int = 200
    far: int = 40
    idle: float = 60.0
    rows: int = 1_000_000
    history_drain: int = 20_000
    history_rounds: int = 7
    snapshot: int = 60_000
    blocked: int = 10_000
    waiting: int = 1_000
    settle_seconds: float = 4.0

    def scaled(self, count: int) -> int:
        """A subject's own count, scaled."""
        return max(1, int(count * self.share))


FULL = Sizes()
QUICK = Sizes(
    rounds=1,
    share=0.1,
    cap=4.0,
    near=40,
    far=4,
    idle=10.0,
    rows=50_000,
    history_drain=5_000,
    history_rounds=2,
    snapshot=10_000,
    blocked=2_000,
    waiting=200,
    settle_seconds=3.0,
)

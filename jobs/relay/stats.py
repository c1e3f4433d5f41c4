"""What a relay says about itself."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.service.life import State


@dataclass(slots=True)
class RelayStats:
    """What a relay has done since it started.

    Attributes:
        name: Label of the relay.
        state: idle (not started), starting, running, draining or stopped.
        leading: Whether it had the lease when it last asked.
        published: Rows published and marked.
        existing: Those of them for which a job with the id or the key was there already.
        refused: Times that the target refused one row.
        parked: Rows set aside after too many refusals.
        failed: Batches of which nothing, or not all, could be published for another reason.
        lost: Batches whose marks were refused, because another relay had taken over.
        pruned: Published rows removed after their time.
        last_error: Why the last batch could not be published; None since one could.
    """

    name: str
    state: State = "idle"
    leading: bool = False
    published: int = 0
    existing: int = 0
    refused: int = 0
    parked: int = 0
    failed: int = 0
    lost: int = 0
    pruned: int = 0
    last_error: str | None = None

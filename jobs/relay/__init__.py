"""The relay: publishes what was staged in the outbox, after the commit and in order."""

from jobs.messages import Message, Outcome, Published, Sink
from jobs.relay.relay import Relay
from jobs.relay.stats import RelayStats

__all__ = ["Message", "Outcome", "Published", "Relay", "RelayStats", "Sink"]

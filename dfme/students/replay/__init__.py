"""Images and answers already paid for, kept to train on again: in memory or on disk."""

from dfme.students.replay.replay import Replay, capacity_within

__all__ = ["Replay", "capacity_within"]

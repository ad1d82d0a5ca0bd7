"""Images and answers already paid for, kept to train on again: in memory or on disk, any or the hard ones first."""

from dfme.students.replay.coding import Coding, ReplayPrecision
from dfme.students.replay.replay import Replay, ReplayOrder, Sample

__all__ = ["Coding", "Replay", "ReplayOrder", "ReplayPrecision", "Sample"]

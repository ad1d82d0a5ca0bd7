"""Images and answers already paid for, kept to train on again: in memory or on disk, any or the hard ones first."""

from dfme.replay.coding import Coding, Precision
from dfme.replay.replay import Order, Replay, Sample

__all__ = ["Coding", "Order", "Precision", "Replay", "Sample"]

"""Generators: from a latent to ``gen_op``, the output before the last squashing, and from there to an image."""

from __future__ import annotations

from dfme.generators.base import GeneratorNet
from dfme.generators.published import Generator
from dfme.generators.several import Several
from dfme.generators.transforming import Transforming

__all__ = ["Generator", "GeneratorNet", "Several", "Transforming"]

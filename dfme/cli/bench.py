"""``run.py bench``: what is checked before torch loads."""

from __future__ import annotations

from collections.abc import Iterator

from dfme.config.commands import BenchConfig
from dfme.config.ranges import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, Problem, Rule
from dfme.run.checks import device_problems

_RULES: dict[str, Rule] = {"rounds": AT_LEAST_ONE, "seconds": POSITIVE, "batch_size": NOT_NEGATIVE}


def find_problems(config: BenchConfig) -> Iterator[Problem]:
    """Numbers out of range, or a device in no known form."""
    for name, rule in _RULES.items():
        value = getattr(config, name)
        if not rule.holds(value):
            yield Problem(name, f"expected {rule.words}, got {value}")
    yield from device_problems(config.device)

"""Ranges of the numbers in a configuration: one line per option, and what is said of a number outside.

No torch here. Each problem names its option; who asks (command line, Python) says how the option was spelled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple


class Problem(NamedTuple):
    """What is wrong with the option of this dotted key: what was expected and what came."""

    key: str
    text: str


class Rule(NamedTuple):
    """A condition on one number, and its words after ``expected``."""

    holds: Callable[[float], bool]
    words: str


AT_LEAST_ONE = Rule(lambda value: value >= 1, "at least 1")
NOT_NEGATIVE = Rule(lambda value: 0 <= value < math.inf, "0 or more")
POSITIVE = Rule(lambda value: 0 < value < math.inf, "a positive number")
SHARE = Rule(lambda value: 0 <= value < 1, "a number from 0 to below 1")
FRACTION = Rule(lambda value: 0 < value <= 1, "a number above 0 and up to 1")
SEED = Rule(lambda value: 0 <= value < 2**63, "a whole number from 0 to below 2^63")
SHARE_OR_ALL = Rule(lambda value: 0 <= value <= 1, "a number from 0 to 1")
FROM_0_TO_64 = Rule(lambda value: 0 <= value <= 64, "from 0 to 64")
FROM_1_TO_64 = Rule(lambda value: 1 <= value <= 64, "from 1 to 64")
RATE = Rule(lambda value: 0.001 <= value < math.inf, "at least 0.001")
CLASSES = Rule(lambda value: value >= 2, "at least 2 (a binary model with one output has 2)")

RULES: dict[str, Rule] = {
    "budget": AT_LEAST_ONE,
    "seed": SEED,
    "checkpoint_seconds": NOT_NEGATIVE,
    "schedule.decay": POSITIVE,
    "schedule.warmup": SHARE,
    "student.count": FROM_0_TO_64,
    "student.steps": NOT_NEGATIVE,
    "student.final_share": SHARE_OR_ALL,
    "student.rounds": FRACTION,
    "student.shrink": SHARE_OR_ALL,
    "student.distil_share": SHARE,
    "student.lr": POSITIVE,
    "student.momentum": SHARE,
    "student.weight_decay": NOT_NEGATIVE,
    "student.decay_images": NOT_NEGATIVE,
    "student.replay_steps": NOT_NEGATIVE,
    "student.replay_batch": AT_LEAST_ONE,
    "student.replay_capacity": AT_LEAST_ONE,
    "student.average": SHARE,
    "student.average_every": AT_LEAST_ONE,
    "evaluation.points": AT_LEAST_ONE,
    "evaluation.limit": NOT_NEGATIVE,
    "teacher.num_classes": CLASSES,
    "teacher.max_batch": AT_LEAST_ONE,
    "teacher.price_per_1000": NOT_NEGATIVE,
    "teacher.in_flight": FROM_1_TO_64,
    "teacher.timeout": POSITIVE,
    "teacher.attempts": AT_LEAST_ONE,
    "teacher.patience": POSITIVE,
    "teacher.images_per_second": RATE,
    "teacher.requests_per_second": RATE,
    "teacher.classification": NOT_NEGATIVE,
    "teacher.top_k": NOT_NEGATIVE,
    "method.batch_size": AT_LEAST_ONE,
    "method.generator_steps": AT_LEAST_ONE,
    "method.student_steps": AT_LEAST_ONE,
    "method.latent_size": AT_LEAST_ONE,
    "method.generator_lr": POSITIVE,
    "method.diversity": NOT_NEGATIVE,
    "method.grey_every": NOT_NEGATIVE,
    "method.seed_images": AT_LEAST_ONE,
    "method.gan_weight": NOT_NEGATIVE,
    "method.gradient_penalty": NOT_NEGATIVE,
    "method.critic_steps": AT_LEAST_ONE,
    "method.critic_lr": POSITIVE,
    "method.discriminator_lr": POSITIVE,
    "method.gan_steps": NOT_NEGATIVE,
    "method.proxy_share": SHARE_OR_ALL,
    "method.diversity_later": NOT_NEGATIVE,
    "method.later_from": SHARE_OR_ALL,
    "method.adversarial": NOT_NEGATIVE,
    "method.epochs": AT_LEAST_ONE,
    "estimator.directions": AT_LEAST_ONE,
    "estimator.step": POSITIVE,
    "estimator.frequencies": FRACTION,
    "estimator.every": AT_LEAST_ONE,
    "estimator.synthetic_lr": POSITIVE,
    "queries.procedural": SHARE_OR_ALL,
    "queries.evolve": SHARE_OR_ALL,
    "queries.generators": FROM_1_TO_64,
    "queries.pool": AT_LEAST_ONE,
    "queries.ceiling": FRACTION,
}
"""One line per number with a range; a method's options are listed once, whichever methods have them."""


def out_of_range(values: Mapping[str, Any]) -> Iterator[Problem]:
    """Numbers outside the range of their rule."""
    for key, value in values.items():
        rule = RULES.get(key)
        if rule is not None and isinstance(value, int | float) and not rule.holds(value):
            yield Problem(key, f"expected {rule.words}, got {value}")

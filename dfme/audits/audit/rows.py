"""What the rows of an audit's attackers are made of: public weights, pictures, and how many images
and steps each of them takes. No torch.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dfme.audits.audit.ladder import HAVING_LIKE, HAVING_WEIGHTS, PUBLIC_POOL
from dfme.audits.audit.options import LARGE_SIDE, AuditConfig
from dfme.audits.audit.parts import NotRun
from dfme.audits.audit.result import Halves
from dfme.audits.compare.plan import NO_DEFENCE
from dfme.config.layers import Layer, value_of
from dfme.config.settings import Job
from dfme.data import DATASETS, HALVES, load_dataset
from dfme.data.array_names import pool_size
from dfme.data.layout import files_below, layout_of
from dfme.errors import Problem
from dfme.spec import SMALL_SIDE, Shape

MAX_SMALL_STEPS = (
    2_000  # of a student in ``quick``, at most, on images of 16 pixels a side or less (measured)
)
MAX_LARGE_STEPS = 600
"""The same above ``LARGE_SIDE`` pixels, of a student that starts from noise."""
MIN_LIKE_STEPS = 1_000
STEPS_OF_IMAGE = 6
"""Steps that an attacker with few images of the owner's kind takes in ``quick``, at least
(measured).
"""


Group = tuple[AuditConfig, list[str]]
"""Options, and the rows that have them."""


@dataclass(frozen=True)
class RowLimits:
    """What bounds the attackers of each row.

    ``like``, ``public``: the images like the owner's and the public pictures that there are, None
    where their number is not known or without end. ``side``: the longer one of the images.
    ``given_steps``: whether somebody gave the students' steps.
    """

    like: int | None
    public: int | None
    side: int | None
    given_steps: bool

    def of(self, config: AuditConfig, row: str) -> AuditConfig:
        """The options with the budget and the steps of a row's attackers."""
        images = self.public if row == PUBLIC_POOL else None
        images = self.like if row in HAVING_LIKE else images
        budget = config.budget if images is None else min(config.budget, images)
        steps = config.student_steps
        if config.profile == "quick" and not self.given_steps:
            steps = min(steps, self._most_steps(row, images, budget))
        return replace(config, budget=budget, student_steps=steps)

    def _most_steps(self, row: str, images: int | None, budget: int) -> int:
        """Of a student in ``quick``: fewer on small images, of which a step takes more, and where
        an attacker has few of them (docs/audit.md); on large ones a step takes long.
        """
        most = 2**63
        if self.side is not None and self.side <= SMALL_SIDE:
            most = MAX_SMALL_STEPS
        elif self.side is not None and self.side > LARGE_SIDE:
            most = MAX_LARGE_STEPS
        if images is not None:
            most = min(most, max(MIN_LIKE_STEPS, STEPS_OF_IMAGE * budget))
        return most

    def groups(self, config: AuditConfig, rows: Sequence[str]) -> list[Group]:
        """The rows of equal budget and steps with their options, in the order of the first ones."""
        groups = list[Group]()
        for row in rows:
            of_row = self.of(config, row)
            same = next((names for of_group, names in groups if of_group == of_row), None)
            if same is None:
                groups.append((of_row, [row]))
            else:
                same.append(row)
        return groups


def limits_of(config: AuditConfig, halves: Halves | None, shape: Shape | None) -> RowLimits:
    """The limits of an audit whose images have this shape, if anybody knows it.

    UserError for a folder of pictures that cannot be read.
    """
    return RowLimits(
        like=halves.held_back if halves else images_in(config.pool),
        public=images_in(config.public_pool),
        side=max(shape[1:]) if shape else None,
        given_steps=bool(config.student_steps),
    )


def quick_on_large(config: AuditConfig, side: int | None) -> tuple[AuditConfig, list[NotRun]]:
    """The options as ``quick`` has them on images of more than ``LARGE_SIDE`` pixels a side, where
    adversarial images and attacks on defences take hours; and what that leaves out.
    """
    if config.profile != "quick" or side is None or side <= LARGE_SIDE:
        return config, []
    left_out = []
    if not config.defences:
        config = replace(config, defences=(NO_DEFENCE,))
        left_out.append(NotRun("defences", f"{QUICK}; name some by --defences"))
    if config.transfer == "auto":
        config = replace(config, transfer="false")
    return config, left_out


def images_in(name: str | None) -> int | None:
    """Number of images in a folder or an .npz file that an attacker has; None for anything else.

    UserError for a folder that cannot be read.
    """
    path = Path(os.path.expanduser(name or ""))
    if not name or name in DATASETS:
        return None
    if path.suffix == ".npz":
        return pool_size(path)
    return len(files_below(layout_of(path).pool).pictures) if path.is_dir() else None


QUICK = f"--profile quick leaves them out above {LARGE_SIDE} pixels a side"

KEYS = ("student.weights", "student.train", "student.arch")
"""Options that flags give to the attackers with public weights alone, where these are named."""


@dataclass(frozen=True)
class PublicStudent:
    """The options of students that start from public weights, as flags say them, by their keys."""

    said: Mapping[str, Any]

    @property
    def weights(self) -> str | None:
        """The weights that flags name for all such rows."""
        return self.said.get("student.weights")

    def problems(self, config: AuditConfig, rows: Mapping[str, Job]) -> Iterator[Problem]:
        """Rows whose attackers lack the weights or the pictures that make them."""
        having = [row for row in rows if row in HAVING_WEIGHTS]
        for row in having:
            if rows[row].config.student.weights is None:
                yield Problem("attackers", f"{row}: expected --student.weights as well")
        if self.weights and not having:
            names = ", ".join(HAVING_WEIGHTS)
            yield Problem("student.weights", f"expected an attacker that has them: {names}")
        if config.public_pool and PUBLIC_POOL not in rows:
            yield Problem("public_pool", f"expected the attacker {PUBLIC_POOL}, with weights")


def public_student(*layers: Layer) -> PublicStudent:
    """What these layers of flags say of it: nothing where they name no weights."""
    values = {key: value_of(layers, key) for key in KEYS}
    said = {key: value for key, value in values.items() if value is not None}
    return PublicStudent(said if "student.weights" in said else {})


def divided(rows: Sequence[str]) -> tuple[list[str], list[str]]:
    """The rows whose attackers have public weights, and the others."""
    having = [row for row in rows if row in HAVING_WEIGHTS]
    return having, [row for row in rows if row not in HAVING_WEIGHTS]


def scored_in_rounds(row: str, job: Job) -> Job:
    """The job of a row; copies with public weights change in rounds alone, and are scored after
    each of these.
    """
    if row not in HAVING_WEIGHTS:
        return job
    evaluation = replace(job.config.evaluation, points=1)
    return replace(job, config=replace(job.config, evaluation=evaluation))


def with_pool(row: str, job: Job, pool: str | None, public_pool: str | None) -> Job:
    """The job of a row, with a pool for who has images like the owner's, or public pictures."""
    own = public_pool if row == PUBLIC_POOL else pool
    has_one = row in (*HAVING_LIKE, PUBLIC_POOL) and hasattr(job.method_config, "pool")
    if own is None or not has_one:
        return job
    return replace(job, method_config=replace(job.method_config, pool=own))


def with_half(row: str, job: Job, dataset: str) -> Job:
    """The job scored on one half of the evaluation images; the other half is somebody's pool."""
    evaluation = replace(job.config.evaluation, dataset=dataset + HALVES[0])
    job = replace(job, config=replace(job.config, evaluation=evaluation))
    return with_pool(row, job, dataset + HALVES[1], None)


def images_shape(job: Job) -> Shape | None:
    """The images' shape, as stated or that of the evaluation images; None if neither says."""
    on = job.config.evaluation
    if job.teacher.shape is not None or on.dataset == "none":
        return job.teacher.shape
    return load_dataset(on.dataset, "test", root=on.root, download=on.download, lazy=True).shape

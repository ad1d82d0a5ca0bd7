"""What must hold between a method, the sections it heeds, and its students. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from dfme.config.fields import problem_of
from dfme.config.messages import Problem
from dfme.config.settings import Job, QueriesConfig
from dfme.errors import UserError
from dfme.methods import METHODS
from dfme.queries.names import check_pool, check_programs

POOLS = ("pool", "proxy", "partial_data")
"""Options of methods that name images to read; ``root`` and ``download`` go with them."""


def method_problems(job: Job) -> Iterator[Problem]:
    """Everything that rules each other out among method, estimator, queries and students."""
    sections = METHODS[job.method].sections
    yield from _student_problems(job)
    yield from _pool_problems(job)
    if "estimator" in sections:
        yield from _estimator_problems(job)
    if "queries" in sections:
        yield from _queries_problems(job)


def students_of(job: Job) -> int:
    """How many students the job trains."""
    return job.config.student.count or METHODS[job.method].students


def keeps_answers(job: Job) -> bool:
    """Whether the students' replay holds what is paid for."""
    student = job.config.student
    return bool(student.steps or student.replay_steps or METHODS[job.method].keeps)


def caught(key: str, action: Callable[[], object]) -> Iterator[Problem]:
    """What ``action`` says is wrong, less the name that it begins with: the key stands there already."""
    try:
        action()
    except UserError as error:
        yield Problem(key, problem_of(error))


def _estimator_problems(job: Job) -> Iterator[Problem]:
    """Settings of the estimator that rule each other out."""
    config = job.estimator
    if config.kind == "auto":
        return
    if config.space == "lattice" and isinstance(config.step, float) and not (config.step >= 1 and config.step % 1 == 0):
        text = f"expected whole levels such as 1 or 4 in space lattice, or auto, got {config.step}"
        yield Problem("estimator.step", text)
    if config.kind == "prior_guided" and config.prior == "neighbours" and config.space == "pre_squash":
        yield Problem("estimator.prior", "expected space image or lattice with neighbours, which are images")
    if config.form == "central" and getattr(job.method_config, "reuse", False):
        text = "expected forward with --method.reuse true, which needs the answer at the point itself"
        yield Problem("estimator.form", text)


def _student_problems(job: Job) -> Iterator[Problem]:
    config, needed = job.config.student, METHODS[job.method].students
    if 0 < config.count < needed:
        text = f"expected at least {needed}, which method {job.method} plays against each other, got {config.count}"
        yield Problem("student.count", text)
    for name in ("final_share", "rounds"):
        if getattr(config, name) and not config.steps:
            yield Problem(f"student.{name}", "expected --student.steps as well, which it divides")
    if config.decay_images and not keeps_answers(job):
        text = "expected --student.steps or --student.replay-steps as well: images are held for replay"
        yield Problem("student.decay_images", text)
    if config.rounds and config.final_share:
        yield Problem("student.final_share", "expected 0 with student.rounds, the last of which is after the budget")
    if 0 < config.steps < len(config.rounds):
        text = f"expected at most as many as --student.steps {config.steps}, got {len(config.rounds)}"
        yield Problem("student.rounds", text)


def _pool_problems(job: Job) -> Iterator[Problem]:
    """Images that the method is to read and that are not there."""
    config = job.method_config
    for name in POOLS:
        pool = getattr(config, name, None)
        if pool is not None:
            yield from caught(f"method.{name}", partial(check_pool, pool, config.root, download=config.download))


def _queries_problems(job: Job) -> Iterator[Problem]:
    config = job.queries
    yield from caught("queries.programs", lambda: check_programs(config.programs))
    if config.choose == "disagreement" and config.pool > 1 and students_of(job) == 1:
        yield Problem("queries.choose", "expected entropy, or --student.count of 2 or more, which can differ")
    if getattr(job.method_config, "adversarial", 0) and (config.pool > 1 or config.procedural):
        text = "expected queries.pool 1 and queries.procedural 0 with it: it looks at what the generator makes itself"
        yield Problem("method.adversarial", text)
    if config.evolve and not keeps_answers(job):
        text = "expected --student.replay-steps or --student.steps as well: what is paid for is kept for replay"
        yield Problem("queries.evolve", text)
    if not hasattr(job.method_config, "latent_size"):
        for name in ("procedural", "base"):
            if getattr(config, name) != getattr(QueriesConfig, name):
                yield Problem(f"queries.{name}", f"method {job.method} has no generator; leave it out")

"""Check a job's settings against each other without torch: every problem is collected."""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dfme.config.imports import find_target
from dfme.config.messages import listed, nearest
from dfme.config.sections import AnswersConfig, QueriesConfig
from dfme.config.settings import EvaluationConfig, ExtractConfig, Job, TeacherConfig
from dfme.data import check_dataset
from dfme.errors import Problem, Ref, Text, UserError, say
from dfme.methods import METHODS, entry_of
from dfme.nets import check_net, find_net, is_own
from dfme.queries.programs import PROCEDURAL, check_pool, check_programs, choice_problems
from dfme.run.directory import holds_something, is_run
from dfme.run.job import POOLS, idle_problems

HELD_BACK_EVERY = 20  # of so many paid batches one is held back from training, to score students on


def check(job: Job, gives: Callable[[str], bool] | None = None) -> None:
    """Raise one UserError that names everything wrong with the job."""
    problems = [*find_problems(job, gives), *teacher_problems(job.teacher)]
    if problems:
        raise UserError(*problems)


def find_problems(job: Job, gives: Callable[[str], bool] | None = None) -> list[Problem]:
    """Everything wrong with the job, its teacher apart, that can be seen without loading torch or
    the data.

    ``gives``: whether the user gave the option of this key, so that one without effect is a
    mistake.
    """
    problems = [
        *method_problems(job),
        *_nets_of(job),
        *evaluation_problems(job.config.evaluation),
        *_run_directory_problems(job.config),
    ]
    if gives is not None:
        problems += [*idle_problems(job, gives), *_without_steps(job, gives)]
    return problems


def net_problems(key: str, arch: str | None) -> Iterator[Problem]:
    """Unknown architecture; none and auto are the builder's. Only a student may be
    ``module:Net``.
    """
    if arch not in (None, "auto"):
        custom = key == "student.arch" and is_own(arch)
        yield from _caught(key, partial(find_net if custom else check_net, arch))


def _nets_of(job: Job) -> Iterator[Problem]:
    """Unknown student or generator; a Python object is tried when it is built."""
    student = job.config.student
    if student.weights is not None:
        yield from _weights_problems(job, student.weights)
    elif "student.arch" not in job.objects:
        yield from net_problems("student.arch", student.arch)
    generator = getattr(job.method_config, "generator", "auto")
    if generator != "auto" and "method.generator" not in job.objects:
        key = "method.generator"
        yield from _caught(key, partial(find_target, generator, Ref(key)))


def _weights_problems(job: Job, weights: str) -> Iterator[Problem]:
    """Public weights that are not there, not of the architecture, or not to be trained so."""
    if "student.arch" in job.objects:
        named = say("expected a name as {student.arch} with it, such as timm:NAME")
        yield Problem("student.weights", named, got="a network of your own")
    else:
        yield from weights_problems(weights, job.config.student.arch)
    train = job.config.student.train
    if train not in ("auto", "all") and hasattr(job.method_config, "latent_size"):
        whole = "expected all, or auto, with method {}, whose generator learns from gradients"
        yield Problem("student.train", say(whole, job.method), got=train)
    if learns_in_stages(job) and students_of(job) > 1:
        one = say("expected one student, or {student.train:all}, since all would be the same")
        yield Problem("student.train", one, got=f"{train} and {students_of(job)} students")


def weights_problems(weights: str, arch: str) -> Iterator[Problem]:
    """Public weights that are not there, or not of the architecture."""
    from dfme.nets.sources import check_weights

    yield from _caught("student.weights", partial(check_weights, weights, arch))


OF_STEPS = (
    "steps passes replay_steps replay_batch optimizer lr momentum weight_decay decay_images "
    "loss shrink augment average"
)
"""Options of a student that is trained by the optimiser alone."""


def _without_steps(job: Job, gives: Callable[[str], bool]) -> Iterator[Problem]:
    """Options that a student which learns in stages does not heed."""
    if learns_in_stages(job):
        for name in OF_STEPS.split():
            if gives(f"student.{name}"):
                only = say("takes effect on a student with weights only with {student.train:all}")
                yield Problem(f"student.{name}", only)


def students_of(job: Job) -> int:
    """Number of students that the job trains."""
    return job.config.student.count or entry_of(job).students


def learns_in_stages(job: Job) -> bool:
    """True if the student has public weights, and learns from what is held: its last layer, ...

    A method with a generator needs a student that learns at every step.
    """
    student = job.config.student
    if student.weights is None or student.train == "all":
        return False
    return student.train != "auto" or not hasattr(job.method_config, "latent_size")


def keeps_answers(job: Job) -> bool:
    """True if the students' replay holds what is paid for."""
    student = job.config.student
    replays = student.steps or student.passes or student.replay_steps
    return bool(replays or entry_of(job).keeps or learns_in_stages(job))


def method_problems(job: Job) -> Iterator[Problem]:
    """Everything that rules each other out among method, estimator, queries and students."""
    heeded = entry_of(job).sections
    method = job.method_config
    if job.method not in METHODS and (uncounted := [*_uncounted(method)]):
        yield from uncounted
        return  # the other rules count with them
    yield from _student_problems(job)
    yield from answers_problems(job.config.answers, job.config.student.loss, int(job.config.budget))
    if job.config.until_agreement is not None:
        yield from _goal_problems(job, job.config.until_agreement)
    for name in POOLS:
        if (pool := getattr(method, name, None)) is not None:
            check = partial(check_pool, pool, method.root, download=method.download)
            yield from _caught(f"method.{name}", check)
    if "estimator" in heeded and job.estimator.kind != "auto":
        yield from _estimator_problems(job)
    if "queries" in heeded:
        yield from _caught("queries.programs", partial(check_programs, job.queries.programs))
        yield from _queries_problems(job)
        in_rounds = bool(job.config.student.rounds) or learns_in_stages(job)
        yield from choice_problems(job.queries, getattr(method, "pool", PROCEDURAL), in_rounds)


def _uncounted(method: Any) -> Iterator[Problem]:
    """Options of a user's method that must be counts, whatever types its class states."""
    for name in ("batch_size", "student_steps"):
        value = getattr(method, name, 1)
        if not isinstance(value, int) or value < 1:
            expected = "expected a whole number of at least 1"
            yield Problem(f"method.{name}", expected, got=f"{value!r:.80}")


def _caught(key: str, action: Callable[[], object]) -> Iterator[Problem]:
    """Problem that ``action`` raises, without the name that it begins with: the key stands there
    already.
    """
    try:
        action()
    except UserError as error:
        yield Problem(key, error.text)


def _student_problems(job: Job) -> Iterator[Problem]:
    config = job.config.student
    needed = entry_of(job).students
    if 0 < config.count < needed:
        few = f"expected at least {needed}, which {job.method} plays against each other"
        yield Problem("student.count", few, got=str(config.count))
    if config.rounds and not (config.steps or config.passes or learns_in_stages(job)):
        yield Problem(
            "student.rounds",
            say("expected {student.passes} or {student.steps} as well, which are taken in them"),
        )
    if config.passes and not config.rounds and not config.steps:
        yield Problem("student.passes", say("expected {student.rounds} as well, which take them"))
    if config.decay_images and not keeps_answers(job):
        yield Problem(
            "student.decay_images",
            say(
                "expected {student.steps} or {student.replay_steps} as well: images are held for "
                "replay"
            ),
        )
    if 0 < config.steps < len(config.rounds):
        many = say("expected at most as many as {}", Ref("student.steps", config.steps))
        yield Problem("student.rounds", many, got=str(len(config.rounds)))


def answers_problems(config: AnswersConfig, loss: str, budget: int) -> Iterator[Problem]:
    """A loss that is not what shall be learnt, a recovery from nothing, a budget too small for one
    image.
    """
    fitting = config.loss(loss)
    if loss not in ("auto", fitting):
        learnt = say("expected auto or {} with {}", fitting, Ref("answers.learn", config.learn))
        yield Problem("student.loss", learnt, got=loss)
    if config.recover != "none" and not config.knows:
        yield Problem(
            "answers.recover",
            say(
                "expected {answers.knows} as well: the defence that is undone, such as "
                "reverse_sigmoid:beta=0.7"
            ),
        )
    if budget < config.times:
        yield Problem(
            "budget",
            say(
                "expected at least {} images, as often as {answers.repeat} and {answers.vote} ask "
                "for each one; got {}",
                config.times,
                budget,
            ),
        )


def _goal_problems(job: Job, share: float) -> Iterator[Problem]:
    """What keeps a student from showing, before the budget is spent, that it is good enough."""
    student = job.config.student
    batch = job.method_config.batch_size
    late = "expected students that learn while the budget is spent, but here they learn afterwards"
    if entry_of(job).keeps and not (student.steps or student.rounds or student.replay_steps):
        remedy = say("; give {student.replay_steps} or {student.steps}")
        yield Problem("until_agreement", late + remedy)
    if len(student.rounds) == 1:
        yield Problem("until_agreement", late + ": give several student.rounds, or none")
    # all of them right, and Wilson's 95% interval begins at ``share``
    needed = math.ceil(share * 3.8415 / (1 - share))
    least = HELD_BACK_EVERY * batch * math.ceil(needed / batch) * job.config.answers.times
    if job.config.budget < least:
        yield Problem(
            "until_agreement",
            f"expected a budget of {least:,} images or more: {needed:,} must be held back, one "
            f"batch of {batch} in 20; got {job.config.budget:,}",
        )


def _estimator_problems(job: Job) -> Iterator[Problem]:
    config = job.estimator
    step = config.step
    if config.space == "lattice" and isinstance(step, float) and not (step >= 1 and step % 1 == 0):
        levels = "expected whole levels such as 1 or 4 in space lattice, or auto"
        yield Problem("estimator.step", levels, got=str(step))
    if config.form == "central" and getattr(job.method_config, "reuse", False):
        reused = Ref("method.reuse", True)
        forward = "expected forward with {}, which needs the answer at the point itself"
        yield Problem("estimator.form", say(forward, reused))


def _queries_problems(job: Job) -> Iterator[Problem]:
    config = job.queries
    method = job.method_config
    if getattr(method, "adversarial", 0) and (config.candidates > 1 or config.procedural):
        yield Problem(
            "method.adversarial",
            "expected queries.pool 1 and queries.procedural 0 with it: it looks at the generator's "
            "own images",
        )
    if config.evolve and not keeps_answers(job):
        yield Problem(
            "queries.evolve",
            say(
                "expected {student.replay_steps} or {student.steps} as well: what is paid for is "
                "kept for replay"
            ),
        )
    for name in ("procedural", "base"):
        default = getattr(QueriesConfig, name)
        if not hasattr(method, "latent_size") and getattr(config, name) != default:
            none = f"method {job.method} has no generator; leave it out"
            yield Problem(f"queries.{name}", none)
    if config.base != "none" and getattr(method, "generator", "auto") != "auto":
        yield Problem(
            "queries.base", "expected none with method.generator: it is a generator of its own kind"
        )


def evaluation_problems(config: EvaluationConfig, needed: bool = False) -> Iterator[Problem]:
    """An unknown or missing evaluation set, or a normalisation that is not one."""
    if needed and config.dataset == "none":
        yield Problem("evaluation.dataset", "expected a data set or a folder of images", got="none")
    if config.classes is not None and config.dataset == "none":
        yield Problem(
            "evaluation.classes", "expected an evaluation.dataset as well, whose classes they are"
        )
    if config.dataset != "none":
        yield from dataset_problems(
            "evaluation.dataset", config.dataset, config.root, config.download
        )
    yield from _normalisation_problems("evaluation.", config.mean, config.std, None)
    if (config.mean is None) != (config.std is None):
        missing = "std" if config.std is None else "mean"
        yield Problem(f"evaluation.{missing}", "expected mean and std together")


def teacher_problems(config: TeacherConfig) -> Iterator[Problem]:
    """A teacher's description that contradicts itself, or has no effect."""
    yield from _normalisation_problems("teacher.", config.mean, config.std, config.shape)
    watched = say("expected {teacher.watch} with it")
    if config.benign is not None and not config.watch:
        yield Problem("teacher.benign", watched)
    if config.on_alarm != "log" and not config.watch:
        yield Problem("teacher.on_alarm", watched)


def _normalisation_problems(
    prefix: str,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    shape: Sequence[int] | None,
) -> Iterator[Problem]:
    for name, values in (("mean", mean), ("std", std)):
        if values is not None and shape is not None and len(values) not in (1, shape[0]):
            expected = f"expected {shape[0]} numbers, one per channel"
            yield Problem(prefix + name, expected, got=listed(values))
    if shape is None and mean is not None and std is not None and len(mean) != len(std):
        expected = f"expected as many numbers as mean has ({len(mean)})"
        yield Problem(prefix + "std", expected, got=listed(std))


def dataset_problems(key: str, dataset: str, root: str, download: bool) -> Iterator[Problem]:
    """A data set that is not known, or whose files are neither there nor to be downloaded."""
    option = Ref(f"{key.partition('.')[0]}.download", True)
    return _caught(
        key, partial(check_dataset, dataset, root, download=download, download_option=option)
    )


def file_problems(
    key: str, path: str | None, remedy: Text = "", folder: bool = False
) -> Iterator[Problem]:
    """A path that is no file, or no folder; ``remedy`` if no similar path exists."""
    if path is None:
        return
    place = Path(os.path.expanduser(path))
    kinds = ("a file", "a directory")
    if not os.path.exists(place):  # unlike pathlib's, false for a name that no file can have
        beside = (
            [entry.name for entry in place.parent.glob("*")] if os.path.isdir(place.parent) else []
        )
        near = nearest(place.name, beside)
        missing = f"expected {kinds[folder]}, but {path!r} does not exist"
        yield Problem(key, missing if near else missing + remedy, near=near)
    elif not (place.is_dir() if folder else place.is_file()):
        yield Problem(key, f"expected {kinds[folder]}, but {path!r} is {kinds[not folder]}")


def fresh_directory_problems(out: str | None) -> Iterator[Problem]:
    """A directory for results, if one was named, that holds something already."""
    if out is not None and (not out or _is_taken(out)):
        text = say("expected a new or empty directory, got {!r}; choose another {out}", out)
        yield Problem("out", text)


def _is_taken(out: str) -> bool:
    return os.path.exists(out) and (not os.path.isdir(out) or holds_something(Path(out)))


def _run_directory_problems(config: ExtractConfig) -> Iterator[Problem]:
    out = config.out
    if config.resume:
        if out is None:
            text = say("expected {out} as well: the run directory to go on with")
            yield Problem("resume", text)
        elif not os.path.isfile(Path(out) / "config.yaml"):
            lacking = f"expected a run directory to resume, but {out!r} has no config.yaml"
            yield Problem("out", lacking)
    elif out == "":
        empty = "expected a directory, got an empty name; leave it out for one under runs/"
        yield Problem("out", empty)
    elif out is not None and _is_taken(out):
        there = say("; there is no run in it to go on with")
        if is_run(out):
            there = say(", or {resume} to go on with the run in it")
        yield Problem("out", say("{!r} exists; give another {out}{}", out, there))
    else:
        path = Path(out or "runs")
        parent = next(
            folder for folder in (path, *path.absolute().parents) if os.path.exists(folder)
        )
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            readonly = f"expected a place that can be written, but {str(parent)!r} cannot"
            yield Problem("out", readonly)

"""What must hold between the settings of a job, before anything heavy is loaded or asked: every problem found.

What one value by itself must be stands at its field. No torch here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from dfme.config.fields import problem_of
from dfme.config.messages import Problem, did_you_mean, listed
from dfme.config.settings import EvaluationConfig, ExtractConfig, Job, QueriesConfig, TeacherConfig
from dfme.errors import UserError
from dfme.methods import METHODS
from dfme.queries.names import check_pool, check_programs
from dfme.run.directory import holds_something

POOLS = ("pool", "proxy", "partial_data")
"""Options of methods that name images to read; ``root`` and ``download`` go with them."""


def check(job: Job) -> None:
    """Raise one UserError that names everything wrong with the job."""
    if problems := [*find_problems(job), *teacher_problems(job.teacher)]:
        raise UserError("; ".join(f"{problem.key}: {problem.text}" for problem in problems))


def find_problems(job: Job) -> list[Problem]:
    """Everything wrong with the job, its teacher apart, that can be seen without loading torch or the data."""
    return [
        *method_problems(job),
        *net_problems("student.arch", job.config.student.arch),
        *evaluation_problems(job.config.evaluation),
        *_run_directory_problems(job.config),
    ]


def evaluation_problems(config: EvaluationConfig) -> Iterator[Problem]:
    """An unknown or missing evaluation set, or a normalisation that is not one."""
    if config.dataset != "none":
        yield from dataset_problems("evaluation.dataset", config.dataset, config.root, config.download)
    yield from _normalisation_problems("evaluation.std", config.mean, config.std)
    if (config.mean is None) != (config.std is None):
        yield Problem("evaluation.std" if config.std is None else "evaluation.mean", "expected mean and std together")


def teacher_problems(config: TeacherConfig) -> Iterator[Problem]:
    """A teacher's description that contradicts itself."""
    if config.shape is None:
        yield from _normalisation_problems("teacher.std", config.mean, config.std)
        return
    for name, values in (("mean", config.mean), ("std", config.std)):
        if values is not None and len(values) not in (1, config.shape[0]):
            text = f"expected {config.shape[0]} numbers, one per channel, got {listed(values)}"
            yield Problem(f"teacher.{name}", text)


def _normalisation_problems(key: str, mean: Sequence[float] | None, std: Sequence[float] | None) -> Iterator[Problem]:
    if mean is not None and std is not None and len(mean) != len(std):
        yield Problem(key, f"expected as many numbers as mean has ({len(mean)}), got {listed(std)}")


def dataset_problems(key: str, dataset: str, root: str, download: bool) -> Iterator[Problem]:
    """A data set that is not known, or whose files are neither there nor to be downloaded."""
    from dfme.data import check_dataset

    flag = f"--{key.partition('.')[0]}.download true"
    yield from caught(key, lambda: check_dataset(dataset, root, download=download, download_flag=flag))


def net_problems(key: str, arch: str | None) -> Iterator[Problem]:
    """An unknown architecture; none and auto are left to the builder."""
    from dfme.nets import check_net

    if arch is not None and arch != "auto":
        yield from caught(key, lambda: check_net(arch))


def file_problems(key: str, path: str | None, remedy: str = "", folder: bool = False) -> Iterator[Problem]:
    """A path, if one was given, that is no file, or no folder; ``remedy`` is said where it is near no other."""
    if path is None:
        return
    place, kinds = Path(os.path.expanduser(path)), ("a file", "a directory")
    if not os.path.exists(place):  # unlike pathlib's, false for a name that no file can have
        beside = [entry.name for entry in place.parent.glob("*")] if os.path.isdir(place.parent) else []
        near = did_you_mean(place.name, beside)
        yield Problem(key, f"expected {kinds[folder]}, but {path!r} does not exist{near or remedy}")
    elif not (place.is_dir() if folder else place.is_file()):
        yield Problem(key, f"expected {kinds[folder]}, but {path!r} is {kinds[not folder]}")


def fresh_directory_problems(out: str | None) -> Iterator[Problem]:
    """A directory for results, if one was named, that holds something already."""
    if out is not None and (not out or (os.path.exists(out) and not _is_empty_directory(Path(out)))):
        yield Problem("out", f"expected a new or empty directory, got {out!r}; choose another --out")


def _is_empty_directory(path: Path) -> bool:
    return path.is_dir() and not holds_something(path)


def _run_directory_problems(config: ExtractConfig) -> Iterator[Problem]:
    if config.resume:
        if config.out is None:
            yield Problem("resume", "expected --out as well: the run directory to go on with")
        elif not os.path.isfile(Path(config.out) / "config.yaml"):
            yield Problem("out", f"expected a run directory to resume, but {config.out!r} has no config.yaml")
        return
    if config.out == "":
        yield Problem("out", "expected a directory, got an empty name; leave it out for a free one under runs/")
        return
    path = Path(config.out or "runs")
    if config.out is not None and os.path.exists(path) and not _is_empty_directory(path):
        yield Problem("out", f"{config.out!r} exists; give another --out, or --resume to go on with the run in it")
        return
    parent = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        yield Problem("out", f"expected a place that can be written, but {str(parent)!r} cannot")


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

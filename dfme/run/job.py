"""A job: merged from layers of options, without idle ones, and as a document, which config.yaml
holds and which has a hash. No torch here.
"""

import dataclasses
import enum
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from dfme.config.layers import Settings
from dfme.config.sections import Variant
from dfme.config.settings import ExtractConfig, Job, TeacherConfig
from dfme.config.values import Option, flatten, leaves, options_of
from dfme.errors import Problem, Ref, UserError, joined
from dfme.methods import METHODS, SECTIONS, MethodEntry, entry_of
from dfme.queries.programs import PROCEDURAL, idle_choice

PACKAGE = (
    Path(__file__).resolve().parents[1]
)  # with configs/ and teachers/; in a checkout they are links
PROJECT = PACKAGE.parent  # from which a process of ours must be able to import
DEFAULT_RECIPE = PACKAGE / "configs" / "digits.yaml"

CONSENT = ("teacher.authorised_by", "teacher.api_key_env", "teacher.allow_env")  # of a service

SAID_BY_THE_USER = (*CONSENT, "teacher.trust")
"""These count from the command line of who runs it alone; in a file they are a record, or a wish.
"""

MAY_CHANGE_ON_RESUME = (  # keys that do not decide what a query or a weight is
    "recipe",
    "when",  # of which a run's record has the values that were taken
    "out",
    "resume",
    "budget",
    "minutes",
    "checkpoint_seconds",
    "shared_answers",
    "fsync",
    "record_queries",
    "wandb",
    "evaluation.download",
    *CONSENT,
    *(f"teacher.{name}" for name in ("price_per_1000", "api_key_header", "ca_file")),
    *(f"teacher.{name}" for name in ("in_flight", "timeout", "attempts", "patience")),
    *(f"teacher.{name}" for name in ("images_per_second", "requests_per_second")),
)


def consent_flags(job: Job) -> list[str]:
    """The words that allow once more what a file cannot: to ask this job's service, to send secrets
    there, and to load a program."""
    if ":" in job.teacher.kind:
        return []
    options = job.teacher_options
    key = options.get("api_key_env")
    flags = {
        "authorised-by": options.get("authorised_by"),
        "api-key-env": key,
        "allow-env": ",".join(name for name in options.get("allow_env") or () if name != key),
        "trust": "true" if options.get("trust") else None,
    }
    return [f"--teacher.{name}={text}" for name, text in flags.items() if text]


def shown_command(words: Iterable[str]) -> str:
    """A command that a shell takes and a terminal shows: what cannot be printed is spelled by its
    bytes.
    """
    return " ".join(word_of_shell(word) for word in words)


def word_of_shell(word: str) -> str:
    """One word of a command; bash and its like read $'...' with bytes in hexadecimal."""
    if word.isprintable():
        return shlex.quote(word)
    spelled = ""
    for letter in word:
        if letter in "\\'":
            spelled += f"\\{letter}"
        elif letter.isprintable():
            spelled += letter
        else:
            octets = letter.encode("utf-8", "surrogateescape")
            spelled += "".join(f"\\x{octet:02x}" for octet in octets)
    return f"$'{spelled}'"


def resume_command(run_dir: Path, job: Job, command: str = "") -> str:
    """Command that resumes the run of ``job``, or what ``command`` began, from this directory."""
    started = Path(sys.argv[0])
    program = f"python {shlex.quote(str(started))}" if started.name == "run.py" else "python run.py"
    program = "dfme" if started.name == "dfme" else program
    words = [program, command, "--resume --out", word_of_shell(str(run_dir))]
    words.append(shown_command(consent_flags(job)))
    return " ".join(filter(None, words))


def unwatched(job: Job) -> Job:
    """The job with a teacher that nobody watches, and no record of its queries."""
    teacher = replace(job.teacher, watch=(), benign=None, on_alarm="log")
    return replace(job, teacher=teacher, config=replace(job.config, record_queries=False))


def document(job: Job) -> dict[str, Any]:
    """The job as plain data, every default written out; files inside the project are named relative
    to it.

    Raises UserError if an option of a custom teacher has a value that a file cannot hold.
    """
    teacher = {**dataclasses.asdict(job.teacher), **job.teacher_options}
    sections: dict[str, Any] = plain(job.config, "config")
    values = {name: plain(value, f"teacher.{name}") for name, value in teacher.items()}
    sections["teacher"] = {name: _portable(value) for name, value in values.items()}
    sections["method"] = {"name": job.method, **plain(job.method_config, "method")}
    sections |= {name: plain(getattr(job, name), name) for name in entry_of(job).sections}
    return sections | {"when": plain(job.when, "when")} if job.when else sections


def config_hash(job: Job) -> str:
    """Sixteen hexadecimal digits over what decides the result: equal for two runs of the same
    experiment.

    The seed counts; budget, run directory, tracking, pace of checkpoints and a watch that only logs
    do not.
    """
    leaves = decisive(document(job))
    if job.teacher.on_alarm == "log":
        for key in ("teacher.watch", "teacher.benign"):
            leaves.pop(key, None)
    return hashlib.sha256(json.dumps(leaves, sort_keys=True).encode()).hexdigest()[:16]


def differing_keys(old: Job | Mapping[str, Any], new: Job | Mapping[str, Any]) -> list[str]:
    """Dotted keys in which a resumed job (or its document) departs from the old; its budget may be
    larger. Of what it can become by its variants that one counts which departs least.
    """
    before, *_ = _documents(old)
    return min((_departures(before, after) for after in _documents(new)), key=len)


def _documents(job: Job | Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [document(outcome) for outcome in job.outcomes] if isinstance(job, Job) else [job]


def _departures(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    recorded = decisive(before)
    wanted = decisive(after)
    keys = [key for key in {**recorded, **wanted} if recorded.get(key) != wanted.get(key)]
    first = int(before["budget"])
    then = int(after["budget"])
    # to the end of its budget, which stays
    planned = recorded.get("student.steps") and not recorded.get("student.rounds")
    departs = then != first if planned else then < first
    lower = (after.get("until_agreement") or 1.0) < (before.get("until_agreement") or 0.0)
    if lower:
        keys.insert(0, "until_agreement")
    if departs:
        keys.insert(0, "budget")
    return keys


LATER = {"student.weights": None, "student.train": "auto", "student.logit_adjustment": 0.0}
"""Keys that came after version 0.16, with the values that mean what runs did before."""

LATER_OF_PROCEDURAL = {
    "method.pool": PROCEDURAL,
    "method.root": "datasets",
    "method.download": False,
}
"""The same of one method; others had these keys before."""


def decisive(content: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of a document that decide what is asked or learnt, by dotted key."""
    leaves = dict(flatten(content, ()))
    is_procedural = leaves.get("method.name") == "procedural"
    later = LATER | LATER_OF_PROCEDURAL if is_procedural else LATER
    return {
        # any goal holds back the same queries
        key: (value is not None or None) if key == "until_agreement" else value
        for key, value in leaves.items()
        if not (key in later and value == later[key])
        and not any(
            key == skipped or key.startswith(skipped + ".") for skipped in MAY_CHANGE_ON_RESUME
        )
    }


def plain(value: Any, where: str) -> Any:
    """The value as YAML and JSON can hold it. UserError, naming ``where``, if they cannot."""
    if isinstance(value, enum.Enum):
        return value.name
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, list | tuple):
        return [plain(item, where) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(name): plain(item, f"{where}.{name}") for name, item in value.items()}
    raise UserError(
        f"{where}: expected a number, text, list or mapping, got an object of type "
        f"{type(value).__name__}"
    )


def is_plain(value: Any) -> bool:
    """True if the value has a form in YAML and JSON."""
    try:
        plain(value, "")
    except UserError:
        return False
    return True


def locate(path: str) -> str:
    """A file's path, tried in the current directory, then in dfme; unchanged if in neither.

    Files that come with dfme come back absolute, so that a job means the same file from any
    directory.
    """
    existing = next(
        (place.resolve() for place in (Path(path), PACKAGE / path) if os.path.exists(place)), None
    )
    return str(existing) if existing is not None and comes_with_dfme(existing) is not None else path


def _portable(value: Any) -> Any:
    """A path of a file within dfme in a recipe's form, free of machine names; else unchanged."""
    if isinstance(value, str) and Path(value).is_absolute():
        return comes_with_dfme(Path(value)) or value
    return value


def comes_with_dfme(path: Path) -> str | None:
    """The path below configs/ or teachers/ of a file that comes with dfme; None of any other."""
    for name in ("configs", "teachers"):
        if path.resolve().is_relative_to(folder := (PACKAGE / name).resolve()):
            return f"{name}/{path.resolve().relative_to(folder).as_posix()}"
    return None


def method_options(method: str, entry: MethodEntry) -> list[Option]:
    """A method's name, its own options, which ``--help`` shows of a custom one, and those of the
    sections that it heeds.
    """
    names = f"{', '.join(METHODS)}, or module:Class of your own"
    options = [Option("method.name", str, "dfme", names)]
    for option in options_of(entry.config, "method."):
        options.append(replace(option, basic=option.basic or ":" in method))
    for name in entry.sections:
        options += options_of(entry.section(name), f"{name}.")
    return options


def merged_job(
    settings: Settings,
    config: ExtractConfig,
    teacher: tuple[TeacherConfig, dict[str, Any]],
    method: str,
    entry: MethodEntry,
    when: tuple[Variant, ...],
    objects: dict[str, Any] | None = None,
) -> Job:
    """The job of these settings; what is wrong with its method's options is reported to them.

    ``teacher``: its common options and those of its kind. ``when``: variants of its recipe.
    ``objects``: what was handed over in
    Python.
    """
    return Job(
        config,
        *teacher,
        method,
        settings.build(entry.config, "method."),
        objects=objects or {},
        when=when,
        **{name: settings.build(entry.section(name), f"{name}.") for name in SECTIONS},
    )


POOLS = ("pool", "proxy", "partial_data")
"""Options of methods that name images; root and download go with them."""
FROM_DISK = "mnist,fashion_mnist,cifar10,cifar100,svhn"
KEPT = (
    Ref("student.replay_steps"),
    Ref("student.steps"),
    Ref("student.passes"),
    Ref("method.keeps"),
)
DRAWING = (
    Ref("queries.procedural"),
    Ref("queries.base"),
    Ref("method.proxy", "procedural"),
    Ref("method.pool", "procedural"),
)
DIFFERENCES = Ref("estimator.kind", "finite_difference,synthetic")

# Options, idle unless one of these has another value than its default, or one of those that stand
# there.
EFFECTS: dict[str, tuple[Ref, ...]] = {
    "student.momentum": (Ref("student.optimizer", "sgd"),),
    "student.passes student.replay_steps": (Ref("student.steps", "0"),),
    "student.replay_steps method.epochs": (Ref("student.passes", "0"),),
    "student.replay_batch student.replay_capacity student.replay_store": KEPT,
    "student.augment method.store": KEPT,
    "student.shrink": (Ref("student.rounds"),),
    "student.train": (Ref("student.weights"),),
    "student.logit_adjustment": (Ref("student.train", "auto,head,tail,all"),),
    "student.average_every": (Ref("student.average"),),
    "schedule.milestones schedule.decay": (Ref("schedule.kind", "steps"),),
    "evaluation.mean evaluation.std evaluation.limit": (Ref("evaluation.dataset"),),
    "evaluation.root evaluation.download": (Ref("evaluation.dataset", FROM_DISK),),
    "answers.knows": (Ref("answers.recover"),),
    "queries.choose queries.balance": (Ref("queries.pool"),),
    "queries.programs queries.domain": DRAWING,
    "queries.programs": (Ref("queries.domain", "unknown"),),
    "estimator.objective estimator.space estimator.form estimator.direction": (DIFFERENCES,),
    "estimator.frequencies": (Ref("estimator.direction", "dct"), Ref("estimator.kind", "auto")),
    "estimator.every estimator.synthetic_lr": (Ref("estimator.kind", "synthetic"),),
    "method.seed_images method.gan_weight method.gradient_penalty": (Ref("method.partial_data"),),
    "method.critic_steps method.critic_lr": (Ref("method.partial_data"),),
    "method.epochs": (Ref("student.replay_steps", "0"),),
    "method.root method.download": tuple(Ref(f"method.{pool}", FROM_DISK) for pool in POOLS),
    "wandb.project wandb.entity wandb.name wandb.group wandb.tags": (Ref("wandb.mode"),),
}


def idle_problems(job: Job, gives: Callable[[str], bool]) -> Iterator[Problem]:
    """Options to which the user gave another value than the default, and which change nothing."""
    entry = entry_of(job)
    sections = {name: entry.section(name)() for name in SECTIONS}
    # what others' options do is theirs to say
    options = entry.config() if job.method in METHODS else job.method_config
    usual = _leaves(Job(ExtractConfig(), TeacherConfig(), {}, "", options, **sections))
    held = _leaves(job) | {"method.keeps": entry.keeps or None}

    def holds(condition: Ref) -> bool:
        value = held.get(condition.key)
        if condition.value is None:
            return value != usual.get(condition.key)
        return str(value) in condition.value_text.split(",")

    for keys, conditions in EFFECTS.items():
        if any(map(holds, conditions)):
            continue
        needed = joined([option for option in conditions if option.key in usual], " or ")
        for key in keys.split():
            if key in held and gives(key) and held[key] != usual[key]:
                yield Problem(key, "takes effect only with " + needed)
    if job.method == "procedural":
        yield from idle_choice(job.queries, job.method_config.pool, gives)


def _leaves(job: Job) -> dict[str, object]:
    """The values of a job by dotted key, its teacher apart."""
    values: dict[str, object] = {"method.name": job.method}
    for name, part in (
        ("method", job.method_config),
        ("estimator", job.estimator),
        ("queries", job.queries),
    ):
        values |= {f"{name}.{key}": value for key, value in leaves(part).items()}
    return leaves(job.config) | values

"""Options that change nothing beside the others, and are refused for it."""

from collections.abc import Callable, Iterator

from dfme.config.settings import ExtractConfig, Job, TeacherConfig
from dfme.config.values import leaves
from dfme.errors import Problem, Ref, joined, say
from dfme.methods import METHODS, SECTIONS, entry_of

POOLS = (
    "pool",
    "proxy",
    "partial_data",
)  # options of methods that name images; root, download go with them
FROM_DISK = "mnist,fashion_mnist,cifar10,cifar100,svhn"
KEPT = ("student.replay_steps", "student.steps", "student.passes", "method.keeps")
DRAWING = (
    "queries.procedural",
    "queries.base",
    "method.proxy=procedural",
    "method.name=procedural",
)
DIFFERENCES = "estimator.kind=finite_difference,prior_guided,synthetic"

# Options, idle unless one of these has another value than its default, or the one that stands
# there.
EFFECTS: dict[str, tuple[str, ...]] = {
    "student.momentum": ("student.optimizer=sgd,auto",),
    "student.passes student.replay_steps": ("student.steps=0",),
    "student.replay_steps method.epochs": ("student.passes=0",),
    "student.replay_batch student.replay_capacity student.replay_store": KEPT,
    "student.augment method.store": KEPT,
    "student.shrink": ("student.rounds",),
    "student.average_every": ("student.average",),
    "schedule.milestones schedule.decay": ("schedule.kind=steps",),
    "evaluation.mean evaluation.std evaluation.limit": ("evaluation.dataset",),
    "evaluation.root evaluation.download": (f"evaluation.dataset={FROM_DISK}",),
    "answers.knows": ("answers.recover",),
    "queries.choose queries.balance": ("queries.pool",),
    "queries.programs queries.domain": DRAWING,
    "queries.programs": ("queries.domain=unknown",),
    "estimator.objective estimator.space estimator.form": (DIFFERENCES,),
    "estimator.direction": ("estimator.kind=finite_difference,synthetic",),
    "estimator.frequencies": ("estimator.direction=dct", "estimator.kind=auto"),
    "estimator.prior": ("estimator.kind=prior_guided",),
    "estimator.every estimator.synthetic_lr": ("estimator.kind=synthetic",),
    "method.seed_images method.gan_weight method.gradient_penalty": ("method.partial_data",),
    "method.critic_steps method.critic_lr": ("method.partial_data",),
    "method.epochs": ("student.replay_steps=0",),
    "method.root method.download": tuple(f"method.{pool}={FROM_DISK}" for pool in POOLS),
    "wandb.project wandb.entity wandb.name wandb.group wandb.tags": ("wandb.mode",),
}


def idle_problems(job: Job, said: Callable[[str], bool]) -> Iterator[Problem]:
    """Options to which the user gave another value than the default, and which change nothing."""
    entry = entry_of(job)
    sections = {name: entry.section(name)() for name in SECTIONS}
    # what others' options do is theirs to say
    options = entry.config() if job.method in METHODS else job.method_config
    usual = _leaves(Job(ExtractConfig(), TeacherConfig(), {}, "", options, **sections))
    held = _leaves(job) | {"method.keeps": entry.keeps or None}

    def holds(condition: str) -> bool:
        key, equals, choices = condition.partition("=")
        return (
            str(held.get(key)) in choices.split(",") if equals else held.get(key) != usual.get(key)
        )

    for keys, conditions in EFFECTS.items():
        parts = [condition.partition("=") for condition in conditions]
        needed = [say("{}", Ref(key, value or None)) for key, _, value in parts if key in usual]
        for key in keys.split():
            if (
                key in held
                and said(key)
                and held[key] != usual[key]
                and not any(map(holds, conditions))
            ):
                yield Problem(key, "takes effect only with " + joined(needed, " or "))


def _leaves(job: Job) -> dict[str, object]:
    """The values of a job by dotted key, its teacher apart."""
    own: dict[str, object] = {"method.name": job.method}
    for name, part in (
        ("method", job.method_config),
        ("estimator", job.estimator),
        ("queries", job.queries),
    ):
        own |= {f"{name}.{key}": value for key, value in leaves(part).items()}
    return leaves(job.config) | own

"""Options that change nothing beside the others, and are refused for it."""

from collections.abc import Callable, Iterator

from dfme.config.settings import ExtractConfig, Job, TeacherConfig
from dfme.config.values import leaves
from dfme.errors import Problem, Ref, joined
from dfme.methods import METHODS, SECTIONS, entry_of

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
    Ref("method.name", "procedural"),
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

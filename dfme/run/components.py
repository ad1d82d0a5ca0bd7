"""Networks, students, replay and query sources of a job, and the method that works with them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dfme.compute.device import Streams, derived_seed, on_accelerator
from dfme.compute.modules import DeferredChecks
from dfme.config.imports import find_target
from dfme.config.settings import ExtractConfig, Job
from dfme.errors import OptionError, Ref, UserError, say
from dfme.estimators.build import needs_preflight
from dfme.methods import METHODS, entry_of
from dfme.methods.base import Components, Method
from dfme.nets import auto_net, build_net, find_net
from dfme.nets.files import infer_net
from dfme.nets.generators import DrawImages, Generator, GeneratorNet, Transforming
from dfme.oracle.oracle import Oracle
from dfme.queries.pool import ImageSource
from dfme.queries.programs import ProceduralImages
from dfme.queries.sampler import Evolution, QuerySampler
from dfme.run.checks import keeps_answers, learns_in_stages, students_of
from dfme.spec import ImageSpec, LabelMode
from dfme.students.losses import make_distance
from dfme.students.optimizers import Schedule
from dfme.students.replay import Replay
from dfme.students.trainer import StudentTrainer

if TYPE_CHECKING:
    from dfme.nets.public import PublicWeights

FEATURES = "features.db"  # not .sqlite, which in a shared folder are answers


@dataclass(frozen=True)
class Nets:
    """A job's networks. ``fresh``: as many new students, by the number of the round that they are
    for. ``weights``: facts of the public weights that students start from, for the record.
    """

    arch: str
    students: list[nn.Module]
    generator: GeneratorNet | None
    fresh: Callable[[int], list[nn.Module]]
    weights: dict[str, Any] | None = None


def with_recorded_net(job: Job, state: dict[str, Any]) -> Job:
    """The job with the architecture in its checkpoint in place of ``auto``, which goes by the
    device.
    """
    nets = (state.get("trainer") or {}).get("nets") or {}
    readable = isinstance(nets, dict) and all(isinstance(value, Tensor) for value in nets.values())
    if (
        job.config.student.arch != "auto"
        or job.config.student.weights is not None  # which say their architecture
        or "student.arch" in job.objects
        or not (nets and readable)
    ):
        return job  # what is no net is refused as such when it is loaded
    names = [name for name in nets if "members.1." not in name]
    recorded = infer_net({name.removeprefix("members.0."): nets[name] for name in names})
    student = replace(job.config.student, arch=recorded.arch if recorded else "auto")
    return replace(job, config=replace(job.config, student=student))


def build_nets(job: Job, spec: ImageSpec, num_classes: int, device: torch.device) -> Nets:
    """The students and the generator as the seed initialises them, on their device."""
    custom = job.objects.get("student.arch") or find_net(job.config.student.arch)
    weights = public_weights(job.config)
    arch, students = build_students(
        job.config, students_of(job), spec, num_classes, device, custom, weights
    )

    def fresh(number: int) -> list[nn.Module]:
        seed = derived_seed(job.config.seed, f"student round {number}")
        return fresh_nets(arch, spec, num_classes, seed, len(students), custom, weights)

    facts = None
    if weights is not None:
        from dfme.nets.input_form import published_facts

        facts = published_facts(students[0])
    return Nets(arch, students, build_generator(job, spec, device), fresh, facts)


def public_weights(config: ExtractConfig) -> "PublicWeights | None":
    """The weights that anybody can download from which students start, read now; None without."""
    student = config.student
    if student.weights is None:
        return None
    from dfme.nets.public import read_weights

    return read_weights(student.weights, student.arch)


def build_students(
    config: ExtractConfig,
    count: int,
    spec: ImageSpec,
    num_classes: int,
    device: torch.device,
    custom: Any = None,
    weights: "PublicWeights | None" = None,
) -> tuple[str, list[nn.Module]]:
    """The architecture and so many students, as the seed initialises them, on their device.

    ``own`` was handed over in Python to make them. A module is one student, with the weights that
    it has. ``weights``: the public ones that the configuration names; their last layer is fresh.
    """
    arch = config.student.arch if weights is None else weights.arch
    if arch == "auto":
        arch = auto_net(spec.shape, on_accelerator(device))
    custom = custom or find_net(arch)
    if isinstance(custom, nn.Module) and (count > 1 or config.student.rounds):
        needed = say("{student.rounds}, which begin with fresh weights")
        if count > 1:
            needed = say("{} students", count)
        expected = say("a torch module is one student, but this needs {}; give its class", needed)
        raise OptionError("student.arch", expected + " instead")
    seed = derived_seed(config.seed, "student")
    nets = fresh_nets(arch, spec, num_classes, seed, count, custom, weights)
    return arch, [_place(net, config, device) for net in nets]


def fresh_nets(
    arch: str,
    spec: ImageSpec,
    num_classes: int,
    seed: int,
    number: int,
    custom: Any = None,
    weights: "PublicWeights | None" = None,
) -> list[nn.Module]:
    """So many nets as ``seed`` initialises them, on the CPU; global random state stays as it
    was. With public weights all but their last layers are equal.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if weights is not None:
            from dfme.nets.public import public_net

            return [public_net(weights, spec, num_classes) for _ in range(number)]
        return [build_net(arch, spec.shape, num_classes, custom) for _ in range(number)]


def build_generator(job: Job, spec: ImageSpec, device: torch.device) -> GeneratorNet | None:
    """The generator as its seed initialises it, on its device, in train mode; None without one."""
    latent_size = getattr(job.method_config, "latent_size", None)
    if latent_size is None:
        return None
    torch.manual_seed(derived_seed(job.config.seed, "generator"))
    net: GeneratorNet
    name = getattr(job.method_config, "generator", "auto")
    if name != "auto":
        from dfme.nets.own import own_generator

        maker = job.objects.get("method.generator") or find_target(name, Ref("method.generator"))
        net = own_generator(maker, latent_size, spec)
    elif job.queries.base == "none":
        net = Generator(latent_size, spec)
    else:
        draw = procedural_images(job, spec)
        assert draw is not None
        net = Transforming(latent_size, spec, draw)
    looks_inside = job.estimator.direction == "range" or job.estimator.kind == "auto"
    if looks_inside and "estimator" in entry_of(job).sections:
        _ = net.last_convolution  # UserError for a custom one without, before anything is asked
    _place(net, job.config, device)
    return net


def procedural_images(job: Job, spec: ImageSpec) -> DrawImages | None:
    """Images by the programs that the job names, where it draws any."""
    queries = job.queries
    draws = (
        queries.procedural
        or queries.base != "none"
        or not hasattr(job.method_config, "latent_size")
    )
    if not draws or "queries" not in entry_of(job).sections:
        return None
    return ProceduralImages(spec, queries.programs).draw


def _place(net: nn.Module, config: ExtractConfig, device: torch.device) -> nn.Module:
    """The net on its device, in the memory format that its configuration says."""
    net.to(device)
    if (
        config.channels_last != "no"
    ):  # measured to be faster on a CPU (docs/results/speed.md) and a GPU
        net.to(memory_format=torch.channels_last)
    return net


def build_trainer(
    config: ExtractConfig,
    students: Sequence[nn.Module],
    mode: LabelMode,
    num_classes: int,
    replay: Replay | None,
    schedule: Schedule,
    rng: Streams,
    fresh: Callable[[int], list[nn.Module]] | None = None,
    directory: Path | None = None,
) -> StudentTrainer:
    """The students' training on answers in ``mode`` that have so many classes.

    ``directory``: the run's, which keeps the features of a student that learns in stages.
    """
    student = config.student
    if student.weights is not None and student.train != "all":
        from dfme.nets.public import PublicNet
        from dfme.students.features import FeatureCache
        from dfme.students.public import PublicTrainer, feature_key

        assert replay is not None
        (net,) = students
        assert isinstance(net, PublicNet)
        shared = config.shared_answers
        folder = directory if shared is None else Path(shared)
        if folder is None:  # as in a rehearsal, which need not read all weights for their digest
            cache = FeatureCache(None, "", net.width)
        else:
            cache = FeatureCache(folder / FEATURES, feature_key(net), net.width)
        return PublicTrainer(config, students, replay, schedule, rng["augment"], mode, cache)
    distance = make_distance(config.answers.loss(student.loss), mode)
    prior = None
    if student.logit_adjustment:
        if replay is None:
            expected = "expected 0 without a replay; give {student.rounds} and {student.passes}"
            raise OptionError("student.logit_adjustment", say(expected))
        from dfme.students.class_prior import ClassPrior

        prior = ClassPrior(student.logit_adjustment, mode, num_classes)
    return StudentTrainer(
        config, students, distance, replay, schedule, rng["augment"], fresh, prior
    )


def build_components(
    job: Job,
    nets: Nets,
    oracle: Oracle,
    rng: Streams,
    deferred: DeferredChecks,
    *,
    pool: ImageSource | None = None,
    directory: Path | None = None,
    hold_out: Callable[[Tensor, Tensor], bool] | None = None,
) -> Components:
    """All that the method of a job works with, which fits the teacher (``build_parts``).

    Leaves global random state at the ``global`` seed.
    ``pool``: what ``open_pool`` gave. ``directory``: the run's, for a replay that is kept on disk.
    """
    config = job.config
    spec = oracle.spec
    mode = oracle.label_mode
    replay = build_replay(job, spec, rng, directory)
    draw = procedural_images(job, spec)
    schedule = Schedule(config.schedule, oracle)
    if not learns_in_stages(job):
        config = replace(config, student=replace(config.student, train="all"))
    students = build_trainer(
        config,
        nets.students,
        mode,
        oracle.num_classes,
        replay,
        schedule,
        rng,
        nets.fresh,
        directory,
    )
    evolution = None
    if job.queries.evolve and replay is not None:
        evolution = Evolution(replay, mode, oracle.num_classes)
    queries = QuerySampler(
        job.queries,
        spec,
        nets.generator,
        draw,
        students.nets,
        rng,
        job.method_config.batch_size,
        evolution,
        trained=lambda: students.steps > 0,
    )
    torch.manual_seed(derived_seed(config.seed, "global"))
    return Components(
        oracle=oracle,
        students=students,
        generator=nets.generator,
        queries=queries,
        rng=rng,
        deferred=deferred,
        lr_factor=schedule.factor,
        estimator=job.estimator,
        sources=job.queries,
        pool=pool,
        hold_out=hold_out,
        seed=config.seed,
    )


def build_method(job: Job, components: Components) -> Method:
    method: Method = entry_of(job).load()(job.method_config, components)
    if job.method not in METHODS:
        _require_cost(job, method)
    return method


def _require_cost(job: Job, method: Method) -> None:
    """UserError for a user's method that pays for nothing, where its cost is known before
    ``prepare``.
    """
    if needs_preflight(job.estimator):
        return
    if (cost := method.cost) < 1:
        raise UserError(
            f"expected a cost of 1 image a step or more, got {cost}",
            about=Ref("method.name", job.method),
        )


def open_pool(job: Job, spec: ImageSpec) -> ImageSource | None:
    """Images that the job's method reads from disk; UserError where they are missing."""
    method = entry_of(job).load()
    pool: ImageSource | None = method.open_pool(job.method_config, spec, job.config.images)
    return pool


def build_replay(
    job: Job, spec: ImageSpec, streams: Streams | None = None, directory: Path | None = None
) -> Replay | None:
    """The replay that the students or the method ask for; without ``streams`` none is drawn
    from.
    """
    config = job.config.student
    if not keeps_answers(job):
        return None
    capacity = min(config.replay_capacity, job.config.images)
    folder = (
        directory / "replay" if directory is not None and config.replay_store == "disk" else None
    )
    rng = torch.Generator() if streams is None else streams["replay"]
    return Replay(capacity, spec, rng, folder)

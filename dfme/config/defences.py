"""Defences of a teacher's answers and the watch over its clients: names, options, facts. No torch.

A defence is written ``modelguard_w:epsilon=1`` or ``module:Class:beta=0.7``; several are joined by
``+``.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from dfme.config.defence_options import DefenceOptions, KeepsTop, own_defence
from dfme.config.defence_options import Facts as Facts
from dfme.config.imports import as_mapping, find_target, top_name
from dfme.config.messages import unknown_choice
from dfme.config.values import (
    CONFIG,
    Count,
    Expected,
    NotNegative,
    Positive,
    Share,
    accepted_by,
    from_mapping,
)
from dfme.errors import UserError

L1Bound = Annotated[float, Field(ge=0, le=2), Expected("an L1 distance from 0 to 2")]
EnvironmentName = Annotated[
    str, Field(pattern=r"^\w+$"), Expected("the name of an environment variable")
]


@dataclass(frozen=True, config=CONFIG)
class Quota(DefenceOptions):
    """Refuses whoever has had so many images within a window of time."""

    name: ClassVar[str] = "quota"
    images: Count = 10_000
    """images answered within the window"""
    window: NotNegative = 0.0
    """seconds; 0: for good"""

    def facts(self, classes: int) -> Facts:
        return Facts(l1=0.0, stateful=True)


@dataclass(frozen=True, config=CONFIG)
class Lattice(DefenceOptions):
    """Rounds to multiples of 1/n that sum to one, by largest remainders; the top class stays
    ahead.
    """

    name: ClassVar[str] = "lattice"
    n: Count = 10
    """steps between 0 and 1"""

    def facts(self, classes: int) -> Facts:
        return Facts(l1=min(2.0, (classes / 2 + 2) / self.n))


@dataclass(frozen=True, config=CONFIG)
class Temperature(DefenceOptions):
    """Answers softmax(log p / t)."""

    name: ClassVar[str] = "temperature"
    t: Positive = 2.0
    """temperature; 1 changes nothing"""

    def facts(self, classes: int) -> Facts:
        return Facts(l1=0.0 if self.t == 1 else None)


@dataclass(frozen=True, config=CONFIG)
class ModelGuardW(DefenceOptions):
    """ModelGuard-W: the answer least informative of p within an L1 ball, top class kept by a
    margin.
    """

    name: ClassVar[str] = "modelguard_w"
    epsilon: L1Bound = 1.0
    """radius of the ball"""
    margin: NotNegative = 1e-4
    """by which the top score stays above all others"""

    def facts(self, classes: int) -> Facts:
        return Facts(l1=self.epsilon)


@dataclass(frozen=True, config=CONFIG)
class ModelGuardS(DefenceOptions):
    """ModelGuard-S: the first stored answer of the same top class within an L1 ball; else p,
    stored.
    """

    name: ClassVar[str] = "modelguard_s"
    epsilon: L1Bound = 1.0
    """radius of the ball"""
    limit: Count = 4_096
    """answers stored of each class; beyond them the nearest is answered"""

    def facts(self, classes: int) -> Facts:
        return Facts(l1=self.epsilon, stateful=True)


@dataclass(frozen=True, config=CONFIG)
class ReverseSigmoid(DefenceOptions):
    """Takes beta (sigmoid(gamma logit p) - 1/2) off every probability, then normalises."""

    name: ClassVar[str] = "reverse_sigmoid"
    beta: NotNegative = 0.21
    """strength; 0 changes nothing"""
    gamma: NotNegative = 0.2
    """slope"""

    def facts(self, classes: int) -> Facts:
        if 0 in (self.beta, self.gamma):
            return Facts(l1=0.0)
        return Facts("p_top>=1/2" if max(self.beta, self.gamma) <= 1 else "no")


@dataclass(frozen=True, config=CONFIG)
class Mad(DefenceOptions):
    """MAD: maximises the angle by which the gradient of whoever learns from the answer is
    turned.
    """

    name: ClassVar[str] = "mad"
    epsilon: L1Bound = 1.0
    """most that an answer changes, in L1"""
    vertices: Literal["argmax", "extreme"] = "argmax"
    """argmax (uniform over classes with the top one) or extreme (any one class, which changes the
    top)
    """
    q: Literal["uniform", "net"] = "uniform"
    """answers of the surrogate student: uniform, or those of an untrained network"""

    def facts(self, classes: int) -> Facts:
        top: KeepsTop = "yes" if self.vertices == "argmax" or not self.epsilon else "no"
        return Facts(top, l1=self.epsilon, needs=("surrogate",) if self.q == "net" else ())


@dataclass(frozen=True, config=CONFIG)
class Grad2(DefenceOptions):
    """GRAD^2 at the last layer: the answer in an L1 ball whose gradient points least along the true
    one.
    """

    name: ClassVar[str] = "grad2"
    epsilon: L1Bound = 1.0
    """radius of the ball"""
    keep_top: bool = False
    """hold the top class, which the published defence does not"""
    margin: NotNegative = 1e-4
    """by which it is held"""
    q: Literal["uniform", "net"] = "uniform"
    """answers of the surrogate student: uniform, or those of an untrained network"""

    def facts(self, classes: int) -> Facts:
        top: KeepsTop = "yes" if self.keep_top or not self.epsilon else "no"
        return Facts(top, l1=self.epsilon, needs=("surrogate",) if self.q == "net" else ())


@dataclass(frozen=True, config=CONFIG)
class Misinform(DefenceOptions):
    """Adaptive misinformation: images that a gate takes for strange are answered wrongly."""

    name: ClassVar[str] = "misinform"
    gate: Literal["softmax", "entropy", "mahalanobis"] = "softmax"
    """score of an image that is at home: softmax (the top probability), entropy (1 - entropy / log
    K), or mahalanobis (share of data's held-out images further from their class; of kind torch)"""
    tau: Share | None = None
    """images below are strange; none: .9, and .01 of mahalanobis"""
    nu: Positive = 1000.0
    """steepness of the change from right to wrong"""
    wrong: Literal["permute", "net", "roll"] = "permute"
    """permute (classes by key and image), net (an untrained one), or roll (by one, which anybody
    undoes)
    """
    data: str = ""
    """of mahalanobis: the owner's labelled images, by name or FOLDER"""
    key_env: EnvironmentName | None = None
    """of permute and net: the environment variable with the key"""

    @property
    def threshold(self) -> float:
        if self.tau is not None:
            return self.tau
        return 0.01 if self.gate == "mahalanobis" else 0.9

    def facts(self, classes: int) -> Facts:
        wrong: dict[str, Any] = {"permute": ("key",), "net": ("key", "surrogate"), "roll": ()}
        gate = ("network", "data") if self.gate == "mahalanobis" else ()
        return Facts("no", needs=(*wrong[self.wrong], *gate))


@dataclass(frozen=True, config=CONFIG)
class Noise(DefenceOptions):
    """Adds Gaussian noise, cuts at zero, normalises."""

    name: ClassVar[str] = "noise"
    sigma: NotNegative = 0.2
    """deviation of the noise"""
    fresh: bool = True
    """draw anew for every answer; false: for every image, by the key"""
    keep_top: bool = False
    """exchange the largest score with that of the top class"""
    key_env: EnvironmentName | None = None
    """the environment variable with the key"""

    def facts(self, classes: int) -> Facts:
        still = not self.sigma
        top: KeepsTop = "yes" if self.keep_top or still else "no"
        fresh = self.fresh and not still
        return Facts(top, l1=0.0 if still else None, stateful=fresh, random=fresh, needs=("key",))


@dataclass(frozen=True, config=CONFIG)
class Watermark(DefenceOptions):
    """DAWN: a share of images, chosen by a key, is always answered wrongly: proof, not
    prevention.
    """

    name: ClassVar[str] = "watermark"
    rate: Share = 0.005
    """share of images"""
    key_env: EnvironmentName | None = None
    """the environment variable with the key"""

    def facts(self, classes: int) -> Facts:
        return Facts("no" if self.rate else "yes", stateful=True, needs=("key",))


@dataclass(frozen=True, config=CONFIG)
class ProofOfWork(DefenceOptions):
    """Proof of work growing with what an account has learnt: answers stay, its price is
    computed.
    """

    name: ClassVar[str] = "pow"
    base: Annotated[float, Field(ge=1), Expected("at least 1")] = 1.0075
    """growth of the seconds of work with each unit of excess"""
    usual: NotNegative = 0.0
    """what an honest image tells on average, entropy in nats; an account's excess is counted above
    it
    """

    def facts(self, classes: int) -> Facts:
        return Facts(l1=0.0, stateful=True)


DEFENCES: dict[str, type[DefenceOptions]] = {
    kind.name: kind
    for kind in (
        Quota,
        Lattice,
        Temperature,
        ModelGuardW,
        ModelGuardS,
        ReverseSigmoid,
        Mad,
        Grad2,
        Misinform,
        Noise,
        Watermark,
        ProofOfWork,
    )
}


def stated(stack: Sequence[DefenceOptions], classes: int) -> Facts:
    """Joint statement of defences that work one after the other; without any: that nothing
    changes.
    """
    facts = [defence.facts(classes) for defence in stack]
    bounds = [fact.l1 for fact in facts]
    kept = {fact.keeps_top for fact in facts} - {"yes"}
    keeps_top: KeepsTop = "no" if kept else "yes"
    if len(facts) == 1:
        keeps_top = facts[0].keeps_top
    return Facts(
        keeps_top,
        None if None in bounds else min(2.0, sum(filter(None, bounds))),
        any(fact.stateful for fact in facts),
        any(fact.random for fact in facts),
        tuple(dict.fromkeys(need for fact in facts for need in fact.needs)),
    )


def parse_defences(value: object) -> tuple[DefenceOptions, ...]:
    """Defences in a text (``a:x=1+b``) or a list of mappings ({name: a, x: 1}) or texts, in order.

    UserError for unknown names and options and values out of range.
    """
    if isinstance(value, str):
        if "," in value:
            raise UserError(
                f"expected defences joined by +, such as temperature:t=2+lattice, got {value!r}"
            )
        value = [] if value.strip().lower() in ("", "none") else value.split("+")
    stack = value if isinstance(value, list | tuple) else [value]
    return tuple(defence for part in stack for defence in _one_or_several(part))


def _one_or_several(value: object) -> tuple[DefenceOptions, ...]:
    if isinstance(value, str) and "+" in value:
        return parse_defences(value)
    if isinstance(value, type) or hasattr(value, "answer"):
        value = as_mapping(value, "defence")
    if isinstance(value, str):
        name, *pairs = name_and_options(value)
        settings: dict[str, Any] = {}
        for pair in pairs:
            key, equals, text = pair.partition("=")
            if not equals:
                raise UserError(f"expected NAME:OPTION=VALUE, got {value!r}")
            settings[key.strip().replace("-", "_")] = text.strip()
    elif isinstance(value, Mapping):
        settings = {str(key).replace("-", "_"): setting for key, setting in value.items()}
        name = str(settings.pop("name", None))
    else:
        raise UserError(f"expected a mapping such as {{name: lattice, n: 10}}, got {value!r}")
    if name not in DEFENCES and ":" not in name:
        raise UserError(unknown_choice("defence", name, [*DEFENCES, "module:Class of your own"]))
    defence = from_mapping(DEFENCES.get(name) or own_defence(name), settings, prefix=f"{name}:")
    if not isinstance(value, str) and repr(parse_defences(str(defence))) != repr((defence,)):
        raise UserError(f"{name}: expected options that can be written as text, got {defence}")
    return (defence,)


def name_and_options(text: str) -> list[str]:
    """The name of a defence as it is written, ``module:Class`` of a custom one, and its options."""
    parts = [part.strip() for part in text.split(":")]
    custom = len(parts) > 1 and "=" not in parts[1] and parts[0] not in DEFENCES
    return [":".join(parts[:2]), *parts[2:]] if custom else parts


def _canonical(value: object) -> tuple[str, ...]:
    try:
        return tuple(str(defence) for defence in parse_defences(value))
    except UserError as error:
        raise ValueError(error.message) from None


DefencesText = Annotated[
    str | tuple[str, ...], Expected("defences joined by +"), BeforeValidator(_canonical)
]
"""A stack of defences as an option: a text or a list, kept as texts with every option written out.
"""


NEED_FEATURES = ("mahalanobis", "sequential", "sprt")
"""Detectors that look into the network, and need one of kind torch."""

OF_ALL_TRAFFIC = ("mmd",)
"""Detectors that see all accounts as one stream: their alarm names no account."""


DETECTORS = (
    "prada",
    "duplicates",
    "pairs",
    "labels",
    "scores",
    "coverage",
    *NEED_FEATURES,
    *OF_ALL_TRAFFIC,
)
"""Names of detectors of extraction; ``dfme.teachers.owner.watch`` has them."""


OnAlarm = Literal["log", "refuse", "label"]
"""What follows an alarm."""


def _names(value: object) -> object:
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    detectors = value if isinstance(value, list | tuple) else [value]
    return [it if isinstance(it, str) else top_name(it, "detector") for it in detectors]


def _known_detectors(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if ":" in name:
            find_target(name, "detector")
        elif name not in DETECTORS:
            raise UserError(
                unknown_choice("detector", name, [*DETECTORS, "module:Class of your own"])
            )
    if len(set(names)) < len(names):
        raise UserError(f"expected every detector once, got {', '.join(names)}")
    return names


WatchText = Annotated[
    tuple[str, ...], BeforeValidator(_names), accepted_by(_known_detectors, whole=True)
]
"""Detectors, given as ``pairs,sequential``."""

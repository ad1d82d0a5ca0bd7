"""Options of ``run.py audit``, its profiles, and the limits that an owner states. No torch."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic.dataclasses import dataclass

from dfme.audits.audit.aitg import MIN_QUERIES, RATINGS
from dfme.audits.audit.ladder import (
    HAVING_LIKE,
    LIKE,
    PUBLIC,
    PUBLIC_LIKE,
    PUBLIC_POOL,
    RECOGNISED_SIDE,
    WEIGHTS,
    parse_rate,
)
from dfme.audits.audit.parts import NotRun
from dfme.audits.audit.price_parts import DETECTED
from dfme.audits.audit.result import AITG, Halves
from dfme.audits.compare.engines import require_engine
from dfme.config.messages import unknown_choice
from dfme.config.settings import EvaluationConfig
from dfme.config.values import (
    CONFIG,
    Basic,
    Count,
    Images,
    LabelModeText,
    Natural,
    OwnTeacher,
    Seed,
    ShareAboveZero,
    accepted_by,
    parse_count,
)
from dfme.data import HALVES, load_dataset
from dfme.errors import Problem, UserError
from dfme.queries.programs import DOMAINS
from dfme.report.run_files import LEVELS
from dfme.spec import LabelMode


@dataclass(frozen=True, config=CONFIG)
class AuditConfig:
    """One audit: the price of a copy, what raises it, and whether it would be noticed."""

    profile: Basic[Literal["quick", "standard", "full"]] = "quick"
    """quick (minutes), standard or full (hours): how many seeds, attackers and defences, and how
    large a budget"""
    budget: Basic[Images] = 12_000
    """images that each attack may ask, such as 12k; of quick at most 3k"""
    acceptable: Basic[tuple[str, ...]] = ()
    """limits of yours, KEY=VALUE: queries_to_50, _80, _90 or _95 (at least so many) and agreement
    (at most), or aitg (no copy above 90 % after 1,000 to 5,000 queries, as OWASP AITG-APP-09
    tests); where one fails the exit code is 4"""
    keep_below: Basic[ShareAboveZero | None] = None
    """an agreement, such as 0.8: find the largest quota of a key that keeps every attacker below
    it, and try the worst attacker under it"""
    per: Basic[Literal["minute", "hour", "day", "month"]] = "day"
    """the term of that quota, in which a key has so many images"""
    attackers: Basic[tuple[str, ...]] = ()
    """rows of the file, such as frugal,dfme; by default those of the profile, who has images like
    yours (knockoff), and with --student.weights who starts from these"""
    label_modes: Basic[tuple[LabelModeText, ...]] = ()
    """forms of answers, your model's own first; by default also probabilities:2 and label, where
    they tell less"""
    own_teacher: Basic[OwnTeacher] = "api"
    """of a class or function of your own (module:name): api, where attacks alone ask it, or local,
    where it answers on this machine for nothing, so that defences and detectors are measured,
    too"""
    defences: Basic[tuple[str, ...]] = ()
    """switches of a teacher on this machine that are tried, such as lattice:n=10,mad; none: no one;
    by default those of the profile (docs/defences.md)"""
    seeds: Basic[tuple[Seed, ...]] = ()
    """seeds of everything random; by default 1 of quick, 3 of standard and 5 of full"""
    pool: Basic[str | None] = None
    """images of a like kind that an attacker may have (knockoff, public_like): a FOLDER, a data set
    or procedural"""
    public_pool: Basic[str | None] = None
    """pictures that anybody can download, whatever they show, which an attacker with public weights
    may have (public_pool): a FOLDER, an .npz file or a data set"""
    like_images: Basic[Literal["half", "none"]] = "half"
    """what an attacker with images like yours has without a --pool: half of your evaluation images,
    while the other half scores all copies; none: nobody has any"""
    twin: Basic[str] = "train"
    """a network trained on your own data, beside which a copy is held: train, none, or its weights
    """
    references: tuple[str, ...] = ()
    """weights of five or more models that are surely no copies, as of run.py verify: says whether
    you would recognise each copy"""
    marks: str | None = None
    """marks.key of run.py mark, beside --references: says whether you would recognise each copy by
    the mark; the audited model is the marked one"""
    transfer: Basic[Literal["auto", "true", "false"]] = "auto"
    """ask the teacher about adversarial images made on the copies; auto: of one on this machine
    alone
    """
    rate: Basic[Annotated[str, accepted_by(parse_rate)] | None] = None
    """images that a key is allowed, such as 60/min or 10k/day: says how long an attack takes"""
    drill: Basic[str | None] = None
    """the FOLDER that run.py drill made of your own service: says what it found beside the controls
    """
    against: Basic[str | None] = None
    """the audit.json of an audit before, or its FOLDER: says what became cheaper or dearer since;
    exit code 4 where a copy from your own answers, or from labels, became cheaper"""
    total: Basic[Images | None] = None
    """most images that may be asked in all, but those that score the copies; more is refused before
    the first one"""
    student_steps: Basic[Natural] = 0
    """optimiser steps of each student; 0: one for each image of the budget, of standard at most
    6,000; fewer make a copy look dearer"""
    jobs: Basic[Count | None] = None
    """attacks side by side; none: 2, of a service 1, or all that slurm or ray has room for"""
    engine: Basic[Annotated[str, accepted_by(require_engine)]] = "local"
    """who runs them, as of run.py compare: local, commands, slurm or ray"""
    engine_options: Basic[tuple[str, ...]] = ()
    """KEY=VALUE of the engine's own"""
    retries: Basic[Natural] = 3
    """how many times an attack that was killed is gone on with"""
    out: Basic[str | None] = None
    """directory of the page and all it was made from; by default a free name under runs/"""
    resume: Basic[bool] = False
    """go on with the audit in --out: what is finished is kept"""
    dry_run: Basic[bool] = False
    """say what the audit would ask, cost and leave out, ask nothing and write nothing"""


class Profile(NamedTuple):
    """Defaults of a profile; ``budget`` and a student's ``steps`` are upper limits.

    ``accounts``: honest ones of each stream, on which detectors are measured.
    """

    seeds: int
    budget: int | None
    steps: int | None
    attackers: tuple[str, ...]
    defences: tuple[str, ...]
    accounts: int


_FEW = ("modelguard_s", "modelguard_w", "reverse_sigmoid:beta=0.7")
_SIX = ("lattice:n=10", *_FEW, "mad", "misinform:key_env=DFME_KEY")
_ALL: tuple[str, ...] = (
    *_SIX,
    "temperature:t=2",
    "reverse_sigmoid:beta=0.21",
    "mad:vertices=extreme",
)
_ALL += ("grad2", "grad2:keep_top=true", "noise:key_env=DFME_KEY", "watermark:key_env=DFME_KEY")
KNOWING = tuple(f"frugal_{domain}" for domain in DOMAINS)
"""Rows of attackers who know what the model is for."""

LARGE_SIDE = 64  # above so many pixels a side ``quick`` tries less, so that it remains quick
MIN_HALF = 40  # images in the attacker's half; with fewer there is no such attacker (heuristic)
TWIN_EPOCHS = 10  # passes over the owner's data that a twin is trained for (heuristic)
PROFILES = {
    "quick": Profile(1, 3_000, 3_000, ("frugal",), _FEW, 6),
    "standard": Profile(3, None, 6_000, ("frugal", *KNOWING, "disguide", "dfme"), _SIX, 20),
    "full": Profile(5, None, None, ("frugal", *KNOWING, "disguide", "dfme"), _ALL, 20),
}

SERVICE = "the teacher is behind a service, which its owner alone can change or watch"
ON_REQUEST = "a teacher of one's own; if it answers here for nothing, add --own-teacher local"
"""Why neither defences nor detectors are measured."""

LIMITS = {f"queries_to_{100 * level:.0f}": level for level in LEVELS}
"""Limits on the price of a level of agreement."""


def budget_of(config: AuditConfig) -> int:
    """The images of each attack, as far as the profile lets it ask."""
    return min(config.budget, PROFILES[config.profile].budget or config.budget)


def limits(texts: Sequence[str], budget: int) -> dict[str, float]:
    """Parse the limits that an owner states. UserError for unknown ones, or beyond what the budget
    shows.
    """
    stated: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name in stated:
            raise UserError(f"expected each limit once, got {name} twice")
        if name not in (*LIMITS, "agreement", AITG):
            raise UserError(unknown_choice("limit", name, [*LIMITS, "agreement", AITG]))
        stated[name] = RATINGS[DETECTED] if text == AITG else _wanted(name, value)
        if not (stated[name] > 0 if name in LIMITS else 0 <= stated[name] <= 1):
            wanted = "images such as 10000 or 10k" if name in LIMITS else "a share from 0 to 1"
            expected = AITG if name == AITG else f"{name}={wanted}"
            raise UserError(f"expected {expected}, got {text!r}")
        least = MIN_QUERIES if name == AITG else stated[name]
        if name != "agreement" and least > budget:
            raise UserError(
                f"{text} cannot be decided by attacks of {budget:,} images, fewer than "
                f"{least:,.0f}; give more --budget, and --profile standard in place of quick"
            )
    return stated


def _wanted(name: str, text: str) -> float:
    """The number of a limit; -1, which none is, where the text has none."""
    try:
        if name == AITG:
            return -1
        return parse_count(text) if name in LIMITS else float(text)
    except ValueError:
        return -1


def own_problems(config: AuditConfig, away: str) -> Iterator[Problem]:
    """Problems with the audit's own options; ``away``: reason why defences are not tried."""
    try:
        limits(config.acceptable, budget_of(config))
    except UserError as error:
        yield Problem("acceptable", str(error))
    like = [row for row in config.attackers if row in HAVING_LIKE]
    if like and config.pool is None and config.like_images == "none":
        yield Problem("attackers", f"expected --pool as well: the images that {like[0]} asks")
    if PUBLIC_POOL in config.attackers and config.public_pool is None:
        yield Problem("attackers", f"expected --public-pool as well: what {PUBLIC_POOL} asks")
    if config.defences and away:
        yield Problem("defences", f"expected none: {away}")
    if config.dry_run and config.resume:
        yield Problem("dry_run", "expected no --resume with it")
    if config.twin not in ("train", "none") and not Path(config.twin).is_file():
        yield Problem("twin", f"expected train, none or a file of weights, got {config.twin!r}")


def usual(config: AuditConfig, away: str, weights: bool) -> tuple[AuditConfig, list[NotRun]]:
    """Fill unset options from the profile; and what is left out, for the reason ``away``.

    ``weights``: whether there are public ones.
    """
    profile = PROFILES[config.profile]
    budget = budget_of(config)
    (own, *others) = config.label_modes
    settled = replace(
        config,
        budget=budget,
        seeds=config.seeds or tuple(range(profile.seeds)),
        attackers=config.attackers or _rows(config, weights),
        label_modes=(own,) if away else config.label_modes,
        student_steps=config.student_steps or min(budget, profile.steps or budget),
        jobs=config.jobs or _jobs(config, away),
    )
    left_out = list[NotRun]()
    if config.profile != "full":
        left_out.append(NotRun(_larger(settled), f"--profile {config.profile}"))
    if away:
        other = "it answers in one form; another one would have to be asked for anew"
        left_out += [NotRun(f"label mode {mode}", other) for mode in others]
        left_out += [NotRun(what, away) for what in ("defences", "detection")]
    if not config.references:
        left_out.append(NotRun("whether you would recognise a copy", "there are no --references"))
    elif not config.marks:
        left_out.append(NotRun("whether you would by a mark", "there is no --marks KEY"))
    return settled, left_out


def _rows(config: AuditConfig, weights: bool) -> tuple[str, ...]:
    """The attackers of the profile. In ``quick`` whoever has images like the owner's has the public
    weights too, if there are any.
    """
    holds = config.pool is not None or config.like_images != "none"
    rows = [*PROFILES[config.profile].attackers]
    if weights:
        rows += [PUBLIC, *([PUBLIC_POOL] if config.public_pool else [])]
    if holds and not (weights and config.profile == "quick"):
        rows.append(LIKE)
    return (*rows, *([PUBLIC_LIKE] if holds and weights else []))


def ladder_left_out(config: AuditConfig, side: int | None) -> list[NotRun]:
    """Attackers of a model that recognises things, by its images' longer side, who are not
    tried.
    """
    if side is not None and side < RECOGNISED_SIDE:
        return []
    left_out = []
    if PUBLIC not in config.attackers:
        left_out.append(NotRun(f"somebody with {WEIGHTS}", "there are no --student.weights"))
    if PUBLIC_POOL not in config.attackers:
        left_out.append(NotRun("somebody with public pictures", "there is no --public-pool"))
    return left_out


def _jobs(config: AuditConfig, away: str) -> int | None:
    """Attacks at once on this machine."""
    if config.engine != "local":
        return None
    return 1 if away else 2


def _larger(config: AuditConfig) -> str:
    """What a larger profile has beyond this one."""
    more = "more defences, seeds and steps"
    if config.profile != "quick":
        return more
    more += ", two sizes of adversarial perturbation"
    untried = {*KNOWING} - {*config.attackers}
    if not untried:
        return more
    others = "attackers" if len(untried) == len(KNOWING) else "other attackers"
    return f"{others} who know what the model is for, {more}"


def held_back(evaluation: EvaluationConfig) -> tuple[Halves | None, str]:
    """Facts of the evaluation images' halves; None, with the reason, where they cannot be
    halved.
    """
    if evaluation.dataset == "none":
        return None, "there are no evaluation images"
    if evaluation.mean is not None:
        return None, (
            "the evaluation images are normalised (--evaluation.mean), which those of a "
            "pool are not"
        )
    load = partial(load_dataset, root=evaluation.root, download=evaluation.download, lazy=True)
    scored, like = (load(f"{evaluation.dataset}{half}", "test") for half in HALVES)
    if len(like) < MIN_HALF:
        return None, (
            f"half of the evaluation images are {len(like)}, and at least {MIN_HALF} are "
            "needed; give more, or --pool FOLDER"
        )
    digest = hashlib.sha256()
    for x_BCHW in like.split(256):
        digest.update(x_BCHW.numpy().tobytes())
    return Halves(evaluation.dataset, len(like), len(scored), digest.hexdigest()), ""


def modes_of(config: AuditConfig, stated: str | None) -> list[str]:
    """The label modes of the audit, the teacher's own first: as ``stated``, else the first that is
    listed.
    """
    first = LabelMode.parse(stated or next(iter(config.label_modes), "probabilities"))
    modes: Sequence[str] = config.label_modes
    if not modes and first.kind != "label":
        few = first.decimals is not None and first.decimals <= 2
        fine = first.kind in ("logits", "probabilities") and not few
        modes = ["probabilities:2", "label"] if fine else ["label"]
    return list(dict.fromkeys([str(first), *(str(LabelMode.parse(text)) for text in modes)]))


OPTIONS = "audit.yaml"
DATA = "audit.json"
SHARED = "cells/.evaluation"  # answers that all runs of an audit share
PAGE = "audit.html"
APPENDIX = "appendix.html"
CARD = "model_card.md"
"""The audit's own file of options, and what it leaves."""

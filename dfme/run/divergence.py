"""Weights that a run has lost, because a rate of theirs was too high: found, and said by the rate's
name.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dfme.compute.modes import evaluating
from dfme.config.settings import StudentConfig
from dfme.errors import DfmeError, Message, Ref, TeacherError, say
from dfme.methods.base import Method
from dfme.students.optimizers import weight_decay
from dfme.students.trainer import StudentTrainer

TRIED = 16  # images on which a student is tried once something has failed


class DivergedError(DfmeError):
    """A student or a generator of which ``what`` is lost; ``rate``: the option it follows from, if
    known.
    """

    def __init__(self, what: str, rate: Message | None = None, whose: str = "student") -> None:
        self.what = what
        self.names_rate = rate is not None
        remedy = "" if rate is None else say(", at {}; start a new run with a lower one", rate)
        super().__init__(say("the {} has diverged: {}{}", whose, what, remedy))


@contextmanager
def naming_the_rate(
    config: StudentConfig, trainer: StudentTrainer, method: Method | None = None
) -> Iterator[None]:
    """What fails inside once weights are lost is said as that; ``config``: as the user gave it.

    Of a teacher that fails the error stays as it is.
    """
    try:
        yield
    except TeacherError:
        raise
    except Exception as error:
        if isinstance(error, DivergedError) and error.names_rate:
            raise
        recent = None if method is None or method.recent is None else method.recent[0]
        what = error.what if isinstance(error, DivergedError) else _lost(trainer, recent)
        if what is not None:
            raise DivergedError(what, _rate(config, trainer)) from error
        if method is not None and (lost := _generator_lost(method, tried=True)) is not None:
            raise lost from error
        raise


def require_finite(config: StudentConfig, trainer: StudentTrainer, method: Method) -> None:
    """DfmeError, which names the rate, for weights that are NaN or infinite: they are worth no
    checkpoint.
    """
    if (what := _lost(trainer, None)) is not None:
        raise DivergedError(what, _rate(config, trainer))
    if (lost := _generator_lost(method, tried=False)) is not None:
        raise lost


def _rate(config: StudentConfig, trainer: StudentTrainer) -> Message:
    """The options that the student's steps follow from.

    A step multiplies weights by 1 - lr * weight_decay, too, which grows without end from 2 on.
    """
    settled = trainer.config
    held = 0 if trainer.replay is None else len(trainer.replay)
    decays = settled.optimizer != "adam" and settled.lr * weight_decay(settled, held) >= 2
    rate = say("{}", Ref("student.lr", config.lr))
    return (
        rate + say(" and {}", Ref("student.weight_decay", config.weight_decay)) if decays else rate
    )


def _lost(trainer: StudentTrainer, recent: Tensor | None) -> str | None:
    """What of the students is NaN or infinite, if anything: weights, or scores and slopes on some
    images.
    """
    if not all(_finite(net) for net in (*trainer.nets, trainer.delivered)):
        return "its weights are NaN or infinite"
    if recent is None:
        return None
    for net in trainer.nets:
        with evaluating(net), torch.enable_grad():
            x_BCHW = recent[:TRIED].detach().clone().requires_grad_()
            scores_BK = net(x_BCHW).float()
            likelihood = scores_BK.log_softmax(1).square().sum()
            (slope_BCHW,) = torch.autograd.grad(likelihood, x_BCHW, allow_unused=True)
        slopes = slope_BCHW is None or bool(slope_BCHW.isfinite().all())
        if not slopes or not bool(scores_BK.isfinite().all()):
            return "its scores are NaN or infinite"
    return None


def _generator_lost(method: Method, tried: bool) -> DfmeError | None:
    """The error about a generator whose weights are lost, of a method that trains one.

    ``tried``: or whose images are, which takes random numbers that the run would have taken.
    """
    if not hasattr(method, "generator_optimizer"):
        return None
    what = "its output is beyond all bounds"
    if not _finite(method.generator):
        what = "its weights are NaN or infinite"
    elif not tried or _generates(method):
        return None
    rate = getattr(method.config, "generator_lr", math.nan)
    return DivergedError(what, say("{}", Ref("method.generator_lr", rate)), whose="generator")


@torch.no_grad()
def _generates(method: Method) -> bool:
    """True if the generator's output, before any squashing, is finite, and its square in float32,
    too.
    """
    net = method.generator
    u_BCHW = net(net.draw(TRIED, method.rng["latent"]))
    return bool(u_BCHW.float().square().isfinite().all())


def _finite(net: nn.Module) -> bool:
    """True if no parameter is NaN or infinite; a buffer may be, as a mask is."""
    return all(bool(parameter.isfinite().all()) for parameter in net.parameters())

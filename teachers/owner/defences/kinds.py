"""The defences, each for one account; behind ``serve``, for that of all keys."""

import hmac
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from dfme.answers import maps
from dfme.answers.reading import read_custom
from dfme.compute.modules import copied, defaults_kept
from dfme.config.defence_options import OwnDefence
from dfme.config.imports import blaming
from dfme.data import load_dataset
from dfme.errors import DfmeError, Refused, TeacherError, UserError, flag
from dfme.nets import build_net
from dfme.spec import ImageSpec, Teacher
from dfme.teachers.owner.checks import key_of
from dfme.teachers.owner.features import Mahalanobis, as_asked, custom_state, require_form


class Defence(ABC):
    """One defence with its options, in front of ``teacher``: float64 on the CPU, no input or
    output.

    ``STATE``, what it remembers at first: numbers, and of tensors (N, C), float64, their C; 0: one
    per class. What its key draws is the same for ever and for no other defence. An untrained
    network is drawn by it, or by no secret.
    """

    STATE: ClassVar[dict[str, Any]] = {}

    def __init__(self, options: Any, teacher: Teacher) -> None:
        self.options = options
        self.name = options.name
        self.classes = teacher.num_classes
        self.state = {name: self._initial(form) for name, form in self.STATE.items()}
        self._eight_bits = replace(teacher.spec, levels=256)
        key = key_of(options) if "key" in options.facts(2).needs else b""
        self._key = hmac.digest(key, self.name.encode(), "sha256")
        net = "net" in (getattr(options, "q", None), getattr(options, "wrong", None))
        self.net = _untrained_net(teacher.spec, self.classes, self.draw(b"net")) if net else None

    def _initial(self, form: Any) -> Any:
        return torch.empty(0, form[0] or self.classes).double() if type(form) is tuple else form

    def admit(self, images: int) -> None:
        """Called before the model is asked for so many images; Refused where they are not to be
        answered.
        """
        return

    @abstractmethod
    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        """Answers in place of the probabilities ``p_BK``, which stay as they are."""

    def draw(self, what: bytes) -> torch.Generator:
        digest = hmac.digest(self._key, what, "sha256")
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)

    def draws(self, images_BCHW: Tensor) -> list[torch.Generator]:
        """One per image, as its 8 bits are."""
        levels = self._eight_bits.encode(images_BCHW.cpu()).contiguous().numpy()
        return [self.draw(image.tobytes()) for image in levels]

    def state_dict(self) -> dict[str, Any]:
        return copied(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave."""
        self.state.update(copied(state))


def _untrained_net(
    spec: ImageSpec, classes: int, draw: torch.Generator
) -> Callable[[Tensor], Tensor]:
    """The probabilities of a small network. Images are asked one by one, so that batches change no
    bit.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.initial_seed())
        net = build_net("cnn_small", spec.shape, classes).eval()
    return lambda x_BCHW: (
        torch.cat([net(x_1CHW).detach() for x_1CHW in x_BCHW.cpu().split(1)]).double().softmax(1)
    )


# The defences that answer by a map, by what they have stored, by chance, or not at all

SECONDS = (0.1, 2_948.0)  # of work for one image, at least and at most


class MapDefence(Defence):
    """The map of this name, and where q is a network's, with that."""

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        options = self.options
        if self.net is None and (change := maps.map_of(options, torch.Generator())):
            return change(p_BK)
        assert self.net is not None
        if self.name == "mad":
            return maps.mad(p_BK, self.net(images_BCHW), options.epsilon, options.vertices)
        return maps.grad2(p_BK, self.net(images_BCHW), options.epsilon, options.margin_kept)


class CentroidDefence(Defence):
    """ModelGuard-S: the first stored answer of equal top class within epsilon; else p, stored."""

    STATE: ClassVar = {"over_budget": 0, "centroids": (0,)}

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        stored_NK = self.state["centroids"]
        tops = p_BK.argmax(1).tolist()
        answers = list[Tensor]()
        new = list[Tensor]()
        tops_N = stored_NK.argmax(1) if len(stored_NK) else torch.empty(0)
        of_class = {top: stored_NK[tops_N == top] for top in {*tops}}
        for p_K, top in zip(p_BK, tops, strict=True):
            apart_N = torch.cdist(p_K[None], of_class[top], p=1.0)[0]
            near_N = (apart_N <= self.options.epsilon).nonzero()
            if len(near_N) or len(of_class[top]) >= self.options.limit:
                answers.append(of_class[top][near_N[0, 0] if len(near_N) else apart_N.argmin()])
                self.state["over_budget"] += not len(near_N)
            else:
                of_class[top] = torch.cat([of_class[top], p_K[None]])
                new.append(p_K[None])
                answers.append(p_K)
        self.state["centroids"] = torch.cat([stored_NK, *new])
        return torch.stack(answers)


class NoiseDefence(Defence):
    """Noise whose row is drawn by the key from the number of the image answered, or from the image
    itself.
    """

    STATE: ClassVar = {"answered": 0}

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        first = self.state["answered"]
        options = self.options
        self.state["answered"] += len(p_BK)
        fresh = (self.draw(b"number %d" % number) for number in range(first, first + len(p_BK)))
        draws = fresh if options.fresh else self.draws(images_BCHW)
        rows = [torch.randn(self.classes, generator=draw, dtype=torch.float64) for draw in draws]
        return maps.noise(p_BK, torch.stack(rows), options.sigma, options.keep_top)


class WatermarkDefence(Defence):
    """DAWN: on images that the key draws, swap the top score with another."""

    STATE: ClassVar = {"marked": 0}

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        y_BK = p_BK.clone()
        for row, draw in enumerate(self.draws(images_BCHW)):
            if float(torch.rand((), generator=draw)) < self.options.rate:
                top = int(p_BK[row].argmax())
                other = (
                    top + int(torch.randint(1, self.classes, (), generator=draw))
                ) % self.classes
                y_BK[row, [top, other]] = p_BK[row, [other, top]]
                self.state["marked"] += 1
        return y_BK


class QuotaDefence(Defence):
    """Refuse a request that would exceed ``images`` in all, or in the last ``window`` seconds."""

    STATE: ClassVar = {"images": 0, "refused": 0, "window": (2,)}  # when, how many

    def admit(self, images: int) -> None:
        most = self.options.images
        window = self.options.window
        had = self.state["images"]
        now = time.time()
        had_N2 = self.state["window"]
        had_N2 = self.state["window"] = had_N2[had_N2[:, 0] > now - window]
        if window:
            had = int(had_N2[:, 1].sum())
        if had + images <= most:
            return
        self.state["refused"] += images
        text = f"the quota of {most:,} images is used up ({had:,} answered, {images:,} asked for)"
        if not window or images > most:
            raise Refused(text, "quota", retry=False)
        # of those that must be out of the window by then
        last = int((had_N2[:, 1].cumsum(0) < had + images - most).sum())
        seconds = float(had_N2[last, 0]) + window - now
        raise Refused(f"{text} within {window:g} s", "quota", retry_after=seconds)

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        self.state["images"] += len(p_BK)
        if self.options.window:
            now_12 = torch.tensor([[time.time(), len(p_BK)]], dtype=torch.float64)
            self.state["window"] = torch.cat([self.state["window"], now_12])
        return p_BK


class WorkDefence(Defence):
    """Seconds of work per image: base ^ (nats of earlier answers, less ``usual`` for each)."""

    STATE: ClassVar = {"images": 0, "nats": 0.0, "seconds_of_work": 0.0}

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        for p_K in p_BK:
            extra = self.state["nats"] - self.options.usual * self.state["images"]
            power = extra * math.log(self.options.base)
            self.state["seconds_of_work"] += max(
                math.exp(min(power, math.log(SECONDS[1]))), SECONDS[0]
            )
            self.state["nats"] += float(torch.special.entr(p_K).sum())
            self.state["images"] += 1
        return p_BK


# Adaptive misinformation: images that a gate takes for strange are answered wrongly

TIED = 1 + 1e-4  # ratio of distances taken for equal


class MisinformDefence(Defence):
    """y = (1 - a) p + a wrong, a = sigmoid(nu (tau - s)), s within 0 and 1: how much the image is
    at home.
    """

    def __init__(self, options: Any, teacher: Teacher) -> None:
        super().__init__(options, teacher)
        if options.gate == "mahalanobis":
            self._distances = Mahalanobis(
                teacher,
                options.data,
                f"{flag('teacher.defences')}: misinform: gate=mahalanobis with data",
            )
            honest = load_dataset(options.data, "test", shape=teacher.spec.shape)
            x_NCHW = as_asked(honest.batch(slice(0, None, 2)), teacher)
            self._honest_N = self._distances(x_NCHW).sort().values * TIED

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        s_B = p_BK.amax(1)
        if self.options.gate == "mahalanobis":
            s_B = self._at_home(images_BCHW)
        elif self.options.gate == "entropy":
            s_B = 1 - torch.special.entr(p_BK).sum(1) / math.log(self.classes)
        wrong_BK = p_BK.roll(1, dims=1) if self.net is None else self.net(images_BCHW)
        if self.options.wrong == "permute":  # in one cycle: no class stays
            orders = [
                torch.randperm(self.classes, generator=draw) for draw in self.draws(images_BCHW)
            ]
            order_BK = torch.stack(orders)
            wrong_BK = p_BK.scatter(1, order_BK.roll(1, dims=1), p_BK.gather(1, order_BK))
        # no batch counts
        a_B1: Tensor = 1 / (1 + (self.options.nu * (s_B - self.options.threshold)).exp()[:, None])
        return (1 - a_B1) * p_BK + a_B1 * wrong_BK

    def _at_home(self, images_BCHW: Tensor) -> Tensor:
        """Share of honest images (every second one of the test part) further from their class."""
        nearer_B = torch.searchsorted(self._honest_N, self._distances(images_BCHW), right=True)
        return 1 - nearer_B.double() / len(self._honest_N)


# A defence that is an object of the user's: tried once, and blamed for what goes wrong in it


class CustomDefence(Defence):
    """An object of a user's class, made after another one was tried; a checkpoint keeps its
    ``state``.
    """

    def __init__(self, options: OwnDefence, teacher: Teacher) -> None:
        self.name = options.name
        self._subject = f"defence {self.name}"
        x_2CHW = torch.full((2, *teacher.spec.shape), teacher.spec.bounds[0])
        with self._blaming(UserError):
            self._object = options.make()
            trial = options.make()
            self._form = copied(custom_state(trial, self._subject, UserError))
            read_custom(trial.answer, torch.eye(2, teacher.num_classes).double(), x_2CHW)
        require_form(
            self._form, custom_state(trial, self._subject, UserError), self._subject, UserError
        )

    @contextmanager
    def _blaming(self, error: type[DfmeError]) -> Iterator[None]:
        """What goes wrong in the user's code, as one line."""
        with blaming(self._subject, error), defaults_kept(self._subject, error):
            yield

    @property
    def state(self) -> dict[str, Any]:  # type: ignore[override]
        return custom_state(self._object, self._subject, TeacherError)

    def admit(self, images: int) -> None:
        with self._blaming(TeacherError):
            getattr(self._object, "admit", super().admit)(images)

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        with self._blaming(TeacherError):
            y_BK = read_custom(self._object.answer, p_BK, images_BCHW.clone())
        require_form(self._form, self.state, self._subject, TeacherError)
        return y_BK

    def load_state_dict(self, state: dict[str, Any]) -> None:
        current = self.state
        current.clear()
        current.update(copied(state))

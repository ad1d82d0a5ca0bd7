"""What defences and detectors share: unrounded scores, features in a network, and the state of
custom ones.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from dfme.answers.reading import read_answers
from dfme.compute.modules import DeferredChecks, validate_like
from dfme.data import load_dataset
from dfme.errors import DfmeError, UserError
from dfme.spec import Teacher
from dfme.teachers.label_modes import LOGITS, PROBABILITIES

STORABLE = (bool, int, float, str, Tensor)


def custom_state(thing: object, subject: str, error: type[DfmeError]) -> dict[str, Any]:
    """The dict ``state`` of a user's object, empty without one. Raises ``error`` for anything
    else.
    """
    state = getattr(thing, "state", {})
    expected = f"{subject}: its state: expected a dict of numbers and tensors by name"
    if not isinstance(state, dict):
        raise error(f"{expected}, got {type(state).__name__} {state!r:.60}")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, STORABLE):
            raise error(f"{expected}, got {type(value).__name__} {value!r:.60} under {name!r:.40}")
    return state


def require_form(
    form: dict[str, Any], state: dict[str, Any], subject: str, error: type[DfmeError]
) -> None:
    """Raise ``error`` unless a state still has the types and shapes of ``form``, as resuming
    needs.
    """
    try:
        validate_like(form, state, "state")
    except ValueError as problem:
        raise error(
            f"{subject}: its state changes its form, so no run could resume: {problem}"
        ) from None


# What the owner's side sees of a teacher's answers: unrounded scores, and features in its network

RIDGE = 1e-3  # of the identity, in a covariance of features
MAX_TRAIN = 5_000  # images of a train part that its means and covariance are taken from (heuristic)
MIN_OF_CLASS = 20  # of each class, whatever that comes to
CPU = torch.device("cpu")


class Mahalanobis:
    """Squared distances of images' features to those of their nearest class.

    Features are what the last linear layer reads. Classes have their means, and share a covariance,
    of the data's train part, of which each class gives at most its share of ``MAX_TRAIN`` images,
    drawn by seed 0. UserError, which begins with ``what``, for data and networks that do not fit.
    """

    def __init__(self, teacher: Teacher, data: str, what: str) -> None:
        network = teacher.info.network or nn.Module()
        layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
        train = load_dataset(data, "train", shape=teacher.spec.shape)
        labels_N = train.required_labels
        classes = range(teacher.num_classes)
        if not layers or labels_N.unique().tolist() != [*classes]:
            expected = (
                f"expected images of all {len(classes)} classes, and a network with a linear layer"
            )
            raise UserError(f"{what} {data}: {expected}")
        self._teacher = teacher
        self._last = layers[-1]
        rng = torch.Generator().manual_seed(0)
        most = max(MAX_TRAIN // len(classes), MIN_OF_CLASS)
        of_class = [(labels_N == label).nonzero()[:, 0] for label in classes]
        few = [rows_N[torch.randperm(len(rows_N), generator=rng)[:most]] for rows_N in of_class]
        few_N = torch.cat(few).sort().values
        labels_N = labels_N[few_N]
        features_NF = _rows(self._listened(as_asked(train.batch(few_N), teacher)))
        self._means_KF = torch.stack([features_NF[labels_N == label].mean(0) for label in classes])
        cov_FF = (features_NF - self._means_KF[labels_N]).T.cov(correction=0)
        # multiplied by this, features have the unit matrix as their covariance: one product for all
        # classes
        factor_FF = torch.linalg.cholesky(cov_FF + RIDGE * torch.eye(len(cov_FF)).double())
        unit_FF = torch.eye(len(factor_FF)).double()
        white_FF = torch.linalg.solve_triangular(factor_FF, unit_FF, upper=False)
        self._white_FF = white_FF.T.contiguous()
        self._centres_KF = self._means_KF @ self._white_FF

    def __call__(self, images_BCHW: Tensor) -> Tensor:
        """Those of images as the teacher takes them, which is asked for them."""
        return self.distances(self._listened(images_BCHW))

    @contextmanager
    def listening(self) -> Iterator[list[Tensor]]:
        """Features of what the teacher is asked meanwhile, call by call, for ``distances``."""
        heard = list[Tensor]()
        with self._last.register_forward_hook(
            lambda layer, given, out: heard.append(given[0].detach())
        ):
            yield heard

    def distances(self, heard: list[Tensor]) -> Tensor:
        """One image at a time, so that batches change no bit."""
        white_B1F = (row_1F @ self._white_FF for row_1F in _rows(heard).split(1))
        return torch.stack(
            [(row_1F - self._centres_KF).square().sum(1).amin() for row_1F in white_B1F]
        )

    def _listened(self, images_BCHW: Tensor) -> list[Tensor]:
        with self.listening() as heard:
            for part_BCHW in images_BCHW.split(self._teacher.spec.at_once(256)):
                self._teacher(part_BCHW)
        return heard


def _rows(heard: list[Tensor]) -> Tensor:
    return torch.cat(heard).flatten(1).double().cpu()


def as_asked(x_BCHW: Tensor, teacher: Teacher) -> Tensor:
    """Images within 0 and 1 as the teacher takes them, where it wants them."""
    low, high = teacher.spec.bounds
    return teacher.spec.quantise(x_BCHW * (high - low) + low).to(teacher.info.device)


@dataclass(frozen=True, eq=False)
class InnerAnswers:
    """Answers as the model gives them, their probabilities in float64 and, where features are
    listened to, squared distances.
    """

    raw: Tensor
    p_BK: Tensor
    distance_B: Tensor | None


def ask_inside(
    teacher: Teacher,
    images: Tensor,
    features: Mahalanobis | None,
    ask: Callable[[Tensor], Any] | None = None,
) -> InnerAnswers:
    """Answers of a teacher that gives unrounded scores; ``ask``: by what it is asked, if not
    itself.
    """
    mode = teacher.label_mode
    with nullcontext(list[Tensor]()) if features is None else features.listening() as heard:
        answers = (ask or teacher)(images)
        raw = read_answers(answers, len(images), teacher.num_classes, mode, DeferredChecks(), CPU)
    p_BK = raw.double().softmax(1) if mode == LOGITS else raw
    if mode == PROBABILITIES:
        p_BK = normalize(raw.double().clamp(min=0), p=1.0)
    return InnerAnswers(raw, p_BK, features.distances(heard) if features else None)

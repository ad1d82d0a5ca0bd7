"""What students are scored on: a set of images that the teacher was asked about, or queries held back from training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dfme.answers.reading import top_class
from dfme.compute import held_to, plain_tensor
from dfme.config.settings import EvaluationConfig, Job
from dfme.data import DATASETS, DRAWN, ImageSet, load_dataset
from dfme.data.class_names import numbered, shown_names
from dfme.errors import UserError
from dfme.oracle.oracle import Oracle
from dfme.report.verdict import Classified, relabelled
from dfme.run.checks import HELD_BACK_EVERY
from dfme.run.scores import batches, compare, evaluation_batch, scores
from dfme.spec import ImageSpec, LabelMode, Shape
from dfme.students.replay.layout import Coding

HELD_BYTES = 1 << 28
"""Evaluation images that take more, as float32, are read again each time that they are scored on."""

HELD_BACK = 2_000
"""Queries held back from training, at most, to score students on."""

AskTeacher = Callable[[Tensor], Tensor]


class Examination(Protocol):
    """What students are scored on."""

    def score(self, student: nn.Module) -> dict[str, float]: ...


def score_all(examination: Examination, student: nn.Module, vote: nn.Module | None) -> dict[str, float]:
    """The student's scores and, under names that begin with ``vote_``, those of the vote it is one of."""
    found = examination.score(student)
    of_vote = {} if vote is None else examination.score(vote)
    return found | {f"vote_{name}": value for name, value in of_vote.items() if name != "teacher_accuracy"}


def evaluated(examination: EvaluationSet | HoldOut) -> dict[str, Any]:
    """What summary.json says of the images that students were scored on."""
    return {"name": examination.name, "images": len(examination), "held_back": examination.held_back}


def classified(
    examination: EvaluationSet | HoldOut,
    classes: int,
    names: Sequence[str] = (),
    student: nn.Module | None = None,
    queries: Tensor | None = None,
) -> Classified:
    """The classes that teacher, labels and ``student`` give to the images, as far as they are there, on the host.

    ``names``: of the teacher's classes. ``queries``: counts (K,) of the answers that were paid for.
    """
    images, answers = examination.images, examination.answers
    kind = "held-back queries" if examination.held_back else "evaluation images"
    own = examination.class_names if len(examination.class_names) == classes else ()
    return Classified(
        classes,
        (torch.zeros(0, dtype=torch.int64) if answers is None else top_class(answers).cpu()).numpy(),
        None if examination.labels is None else examination.labels.cpu().numpy(),
        None
        if student is None or images is None or answers is None
        else scores(student, images).argmax(1).cpu().numpy(),
        None if queries is None else queries.cpu().numpy(),
        names or own,
        own,
        f"{len(examination):,} {kind}",
    )


def under_defences(oracle: Oracle, examination: EvaluationSet | HoldOut, seen: Classified) -> dict[str, Any]:
    """What summary.json says besides of a teacher with defences or a watch, once the copy is what it is."""
    if "defences" not in (told := oracle.defences):
        return told
    served = None
    if isinstance(examination, EvaluationSet):
        answers = [part for part in map(oracle.served, batches(examination.images)) if part is not None]
        served = float((top_class(torch.cat(answers)).cpu().numpy() == seen.student).mean()) if answers else None
    return {"agreement_served": served, "agreement_relabelled": relabelled(seen), **told}


def _pairs(images: Tensor | ImageSet | None, answers: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    if images is not None and answers is not None:
        yield from zip(batches(images), answers.split(evaluation_batch(images.shape)), strict=True)


@dataclass
class EvaluationSet:
    """Images with the teacher's answers to them, asked once and not charged; without labels no accuracy is known.

    ``images`` are as the teacher takes them, on the student's device, or come there batch by batch. ``ask`` is called
    before the first score, unless the answers came back with a checkpoint; None: they always do.
    """

    name: str
    images: Tensor | ImageSet
    labels: Tensor | None
    mode: LabelMode
    ask: AskTeacher | None
    answers: Tensor | None = None
    held_back: bool = False
    class_names: tuple[str, ...] = ()
    device: torch.device | str = "cpu"

    def __len__(self) -> int:
        return len(self.images)

    def prepare(self) -> None:
        """Ask the teacher, if that has not been done."""
        if self.answers is None:
            assert self.ask is not None, "every answer is on record"
            self.answers = torch.cat([self.ask(part) for part in batches(self.images)])

    @property
    def teacher_accuracy(self) -> float | None:
        assert self.answers is not None, "prepare() comes first"
        if self.labels is None:
            return None
        return (top_class(self.answers) == self.labels).double().mean().item()

    def score(self, student: nn.Module) -> dict[str, float]:
        """``agreement`` and ``kl`` with the teacher; where there are labels, ``accuracy`` and ``teacher_accuracy``."""
        assert self.answers is not None, "prepare() comes first"
        scores_NK = scores(student, self.images)
        followed, of_teacher = compare(scores_NK, self.answers, self.mode), self.teacher_accuracy
        if self.labels is None or of_teacher is None:
            return followed
        accuracy = (scores_NK.argmax(dim=1) == self.labels).double().mean().item()
        return {"accuracy": accuracy, "teacher_accuracy": of_teacher, **followed}

    def state_dict(self) -> dict[str, Any]:
        return {"answers": self.answers, "labels": self.labels}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the answers, and the labels as the teacher's order of classes had made them (not before 0.7.0)."""
        answers, own = plain_tensor(state["answers"], "evaluation answers"), self.labels
        if own is not None and len(answers) == len(own):  # else other images are on record, which comes out later
            labels = held_to(own.cpu(), state.get("labels", own.cpu()), "evaluation labels")
            self.labels = labels.to(self.device)
        self.answers = answers.to(self.device)

    @property
    def paid(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The images and their answers, once they were asked for, in batches."""
        return _pairs(self.images, self.answers)


class HoldOut:
    """Keeps every n-th paid batch for evaluation, in place of an evaluation set.

    These images are the method's own, so this agreement says how well the student follows the teacher where it is
    asked, and no more. There are no labels, hence no accuracy.
    """

    name = "held-back queries"
    held_back = True
    labels: Tensor | None = None
    class_names: tuple[str, ...] = ()
    teacher_accuracy: float | None = None

    def __init__(
        self,
        mode: LabelMode,
        spec: ImageSpec,
        device: torch.device | str = "cpu",
        every: int = HELD_BACK_EVERY,
        keep: int = HELD_BACK,
    ) -> None:
        self.mode, self._device = mode, torch.device(device)
        self._every, self._keep, self._seen = every, keep, 0
        self._coding = Coding(spec)
        self._coded: Tensor | None = None
        self.answers: Tensor | None = None

    def __len__(self) -> int:
        return 0 if self._coded is None else len(self._coded)

    @property
    def images(self) -> ImageSet | None:
        """The held-back images, which are kept in the replay's coding; none before the first."""
        if (coded := self._coded) is None:
            return None
        return ImageSet(self.name, coded, read=lambda index: self._coding.decode(coded[index]))

    def hold_out(self, images: Tensor, answers: Tensor) -> bool:
        """Keep the batch for evaluation if it is an n-th one; whether it was kept, and is not to be trained on."""
        self._seen += 1
        if self._seen % self._every:
            return False
        coded = self._coding.encode(images)
        if self._coded is not None and self.answers is not None:
            coded = torch.cat([self._coded, coded])[-self._keep :]
            answers = torch.cat([self.answers, answers])[-self._keep :]
        self._coded, self.answers = coded, answers
        return True

    def score(self, student: nn.Module) -> dict[str, float]:
        """``agreement`` and ``kl`` on the held-back images; nothing while there are none."""
        if (images := self.images) is None or self.answers is None:
            return {}
        return compare(scores(student, images), self.answers, self.mode)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self._seen, "images": self._coded, "answers": self.answers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave; before 0.8.0 images were kept as floats."""
        self._seen = held_to(0, state["seen"], "batches seen")
        if state["images"] is not None:
            found = (plain_tensor(state[name], f"held-back {name}") for name in ("images", "answers"))
            coded, self.answers = (each.to(self._device) for each in found)
            self._coded = self._coding.encode(coded) if coded.is_floating_point() else coded

    @property
    def paid(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The held-back images and their answers, in batches."""
        return _pairs(self.images, self.answers)


def held_back_bytes(job: Job, spec: ImageSpec, answer: int, images: int) -> int:
    """Bytes of what is held back of so many queries, with answers of so many bytes, where students are scored on it."""
    batch: int = job.method_config.batch_size
    kept = job.config.evaluation.dataset == "none" or job.config.until_agreement is not None
    return kept * min(HELD_BACK, images // batch // HELD_BACK_EVERY * batch) * (Coding(spec).image_bytes + answer)


def examination_of(
    data: ImageSet | None, spec: ImageSpec, mode: LabelMode, device: torch.device, ask: AskTeacher | None
) -> EvaluationSet | HoldOut:
    """What students are scored on: labelled images or, without any, generated ones that are held back."""
    if data is None:
        return HoldOut(mode, spec, device)
    labels = None if data.labels is None else data.labels.to(device)
    held = replace(data, read=lambda index: data.batch(index).to(device))
    images = data.images.to(device) if data.read is None else held
    return EvaluationSet(data.name, images, labels, mode, ask, class_names=data.class_names, device=device)


def shape_of(config: EvaluationConfig) -> Shape | None:
    """The shape that all images of an evaluation set have; None where they can be made in any, as a folder's can."""
    sized = config.dataset.endswith(".npz") or config.dataset in DATASETS
    if not sized or config.dataset in DRAWN:
        return None
    return load_dataset(config.dataset, "test", root=config.root, download=config.download).shape


def evaluation_images(
    config: EvaluationConfig,
    spec: ImageSpec,
    num_classes: int,
    class_names: Sequence[str] | None = None,
    handed_over: ImageSet | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> ImageSet | None:
    """The evaluation set as the teacher takes it; none without one. UserError if it does not fit the teacher.

    ``class_names``: the teacher's, where it announces any. ``tell`` hears what was done to the labels.
    """
    if config.dataset == "none":
        return None
    name, root, load = config.dataset, config.root, partial(load_dataset, handed_over=handed_over, lazy=True)
    try:
        data = load(name, "test", shape=spec.shape, root=root, download=config.download)
    except UserError as error:
        taken = "x".join(map(str, spec.shape))
        raise UserError(f"--evaluation.dataset: {error} (the teacher takes {taken})") from error
    own = data.subset(config.limit)
    data = numbered(own, num_classes, config.classes, class_names, folder=name not in DATASETS)
    if config.classes is None and own.labels is not None and not torch.equal(own.labels, data.required_labels):
        tell(f"evaluation: the classes of {own.name} are put in the teacher's order: {shown_names(data.class_names)}")
    if 4 * math.prod(data.images.shape) <= HELD_BYTES:
        return replace(data, images=_taken(data.batch(slice(None)), config, spec), read=None)
    streamed = replace(data, read=lambda index: _taken(data.batch(index), config, spec))
    for _ in batches(streamed):  # a picture that cannot be read is found before anything is asked
        pass
    return streamed


def _taken(x_NCHW: Tensor, config: EvaluationConfig, spec: ImageSpec) -> Tensor:
    """Images within 0 and 1 as the teacher takes them."""
    if config.mean is not None and config.std is not None:
        mean_C11, std_C11 = (torch.tensor(values).view(-1, 1, 1) for values in (config.mean, config.std))
        return (x_NCHW - mean_C11) / std_C11
    low, high = spec.bounds
    return x_NCHW * (high - low) + low

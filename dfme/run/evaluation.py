"""Evaluation of students, on images that the teacher was asked about, or on held-back queries.

``OwnersRecord`` is what a teacher in this process, with defences or a watch, adds to the record: it
is its owner's, who sees more than the attack does, and none of it passes the oracle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from dfme.answers.reading import top_class, unanswered
from dfme.compute.modules import validate_like
from dfme.data import ImageSet
from dfme.errors import RunError, Unserved
from dfme.files import AppendFile, make_folder, whole_lines
from dfme.report.classified import Classified
from dfme.report.verdict import relabelled
from dfme.run.checkpoint import explain_load_errors, load_checkpoint, require_paid, save_checkpoint
from dfme.run.checks import HELD_BACK_EVERY
from dfme.run.directory import wait_for_lock
from dfme.run.scores import batches, compare, evaluation_batch, scores
from dfme.spec import ImageSpec, LabelMode, Teacher
from dfme.students.replay import Coding

if TYPE_CHECKING:
    from dfme.data.recorded_queries import QueryRecord


@dataclass(frozen=True)
class OwnersRecord:
    """Facts of a teacher's defences and watch, and answers that an honest user would get.

    ``queries``: what records the run's, if something does.
    """

    teacher: Teacher
    queries: QueryRecord | None = None

    def facts(self) -> dict[str, Any]:
        """Texts of defences and ``report`` of defences and watch; empty for a plain teacher."""
        info = self.teacher.info
        facts: dict[str, Any] = {}
        if info.defences and info.stateful:
            facts = {"defences": list(info.defences), "defence_report": info.stateful.report()}
        if info.watch and info.watch.names:
            facts["watch"] = info.watch.report()
        plain: dict[str, Any] = json.loads(json.dumps(facts, default=str))
        return plain

    def preview(self, images_BCHW: Tensor) -> Tensor | None:
        """Answers that an honest user would get now; None if unavailable. No state changes."""
        info = self.teacher.info
        if info.preview is None:
            return None
        spec = self.teacher.spec
        queries_BCHW = images_BCHW.to(info.device, torch.float32)
        if spec.levels is not None:
            queries_BCHW = spec.quantise(queries_BCHW)
        parts = queries_BCHW.split(info.max_batch or len(queries_BCHW))
        with torch.no_grad(), torch.autocast(queries_BCHW.device.type, enabled=False):
            return torch.cat([info.preview(part.clone()) for part in parts])

    def keep_watch(self, path: Path) -> None:
        """Append to a file what the watch said since the checkpoint, in place of a killed session's
        lines; what was recorded of the queries is then on the disk, too.

        RunError where the disk refuses, or for a file that holds something else.
        """
        if self.queries is not None:
            self.queries.sync()
        watch = self.teacher.info.watch
        if watch is None or not (lines := watch.drain()):
            return
        first = min(line["images"] for line in lines)
        size = 0
        try:
            for line in whole_lines(path) if path.exists() else ():
                if json.loads(line)["images"] >= first:
                    break
                size += len(line)
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            raise RunError(
                f"{path}: expected the lines of a run's watch; remove it to go on"
            ) from None
        with closing(AppendFile(path, size)) as file:
            file.append("".join(json.dumps(line) + "\n" for line in lines).encode())


AskTeacher = Callable[[Tensor], Tensor]


class Examination(Protocol):
    """Images that students are scored on."""

    def score(self, student: nn.Module) -> dict[str, float]: ...


def score_all(
    examination: Examination, student: nn.Module, vote: nn.Module | None
) -> dict[str, float]:
    """The student's scores and, under names that begin with ``vote_``, those of the vote it is one
    of.
    """
    figures = examination.score(student)
    for name, value in ({} if vote is None else examination.score(vote)).items():
        if name not in ("teacher_accuracy", "constant_agreement"):
            figures[f"vote_{name}"] = value
    return figures


def evaluated(examination: EvaluationSet | HoldOut) -> dict[str, Any]:
    """Facts of the images that students were scored on, for summary.json."""
    facts = {
        "name": examination.name,
        "images": len(examination),
        "held_back": examination.held_back,
    }
    left_out = examination.left_out if isinstance(examination, EvaluationSet) else 0
    return facts | ({"no_answer": left_out} if left_out else {})


def classified(
    examination: EvaluationSet | HoldOut,
    classes: int,
    names: Sequence[str] = (),
    student: nn.Module | None = None,
    queries: Tensor | None = None,
) -> Classified:
    """Classes that teacher, labels and ``student`` give to the images, if known, on the host.

    ``names``: of the teacher's classes. ``queries``: counts (K,) of the answers that were paid for.
    """
    images = examination.images
    answers = examination.answers
    kind = "held-back queries" if examination.held_back else "evaluation images"
    class_names = examination.class_names if len(examination.class_names) == classes else ()
    copied = None
    if student is not None and images is not None and answers is not None:
        copied = scores(student, images).argmax(1).cpu().numpy()
    return Classified(
        classes,
        (
            torch.zeros(0, dtype=torch.int64) if answers is None else top_class(answers).cpu()
        ).numpy(),
        None if examination.labels is None else examination.labels.cpu().numpy(),
        copied,
        None if queries is None else queries.cpu().numpy(),
        names or class_names,
        class_names,
        f"{len(examination):,} {kind}",
        held_back=examination.held_back,
    )


def under_defences(
    owner: OwnersRecord, examination: EvaluationSet | HoldOut, seen: Classified
) -> dict[str, Any]:
    """Facts for summary.json of a teacher with defences or a watch, once the copy is finished."""
    facts = owner.facts()
    if "defences" not in facts:
        return facts
    served = None
    if isinstance(examination, EvaluationSet):
        answers = [
            part for part in map(owner.preview, batches(examination.images)) if part is not None
        ]
        if answers:
            served = float((top_class(torch.cat(answers)).cpu().numpy() == seen.student).mean())
    return {"agreement_served": served, "agreement_relabelled": relabelled(seen), **facts}


def _pairs(examination: EvaluationSet | HoldOut) -> Iterator[tuple[Tensor, Tensor]]:
    images = examination.images
    if images is not None and examination.answers is not None:
        answers = examination.answers.split(evaluation_batch(images.shape))
        yield from zip(batches(images), answers, strict=True)


@dataclass
class EvaluationSet:
    """Images with the teacher's answers, asked once, not charged; accuracy needs labels.

    ``images`` are as the teacher takes them, on the student's device, or come there batch by batch.
    ``ask`` is called before the first score, unless the answers came back with a checkpoint; None:
    they always do. ``left_out``: images to which a service named no class; the others alone are
    scored on.
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
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.images)

    def prepare(self, shared: Path | None = None, facts: Mapping[str, Any] | None = None) -> bool:
        """Ask the teacher, unless its answers are there; False if they are those that another run
        asked for.

        The folder ``shared`` holds them by teacher (``facts`` without defences, which do not touch
        them), mode and images. One run asks; the others wait for it.
        """
        if self.answers is not None:
            return True
        if shared is None or facts is None:
            assert self.ask is not None, "every answer is on record"
            self._take(torch.cat([self.ask(part) for part in batches(self.images)]))
            return True
        form = {name: fact for name, fact in facts.items() if name not in ("defences", "sources")}
        code = hashlib.sha256(json.dumps([form, str(self.mode)], sort_keys=True).encode())
        for x_BCHW in batches(self.images):
            code.update(x_BCHW.cpu().numpy().tobytes())
        kept = shared / code.hexdigest()[:16] / "answers.pt"
        make_folder(kept.parent)
        with closing(wait_for_lock(kept.parent)):
            if not kept.exists():
                self.prepare()
                save_checkpoint(kept, {"answers": self._whole[0]})
                return True
        with explain_load_errors(kept):
            self._take(load_checkpoint(kept)["answers"])
            require_paid(
                self.paid, ImageSpec(tuple(facts["shape"])), facts["num_classes"], self.mode
            )
        return False

    @property
    def teacher_accuracy(self) -> float | None:
        assert self.answers is not None, "prepare() comes first"
        if self.labels is None:
            return None
        return (top_class(self.answers) == self.labels).double().mean().item()

    def score(self, student: nn.Module) -> dict[str, float]:
        """``agreement`` and ``kl`` with the teacher; with labels ``accuracy`` and
        ``teacher_accuracy``.
        """
        assert self.answers is not None, "prepare() comes first"
        scores_NK = scores(student, self.images)
        followed = compare(scores_NK, self.answers, self.mode)
        of_teacher = self.teacher_accuracy
        if self.labels is None or of_teacher is None:
            return followed
        accuracy = (scores_NK.argmax(dim=1) == self.labels).double().mean().item()
        return {"accuracy": accuracy, "teacher_accuracy": of_teacher, **followed}

    def state_dict(self) -> dict[str, Any]:
        answers, labels = self._whole
        return {"answers": answers, "labels": labels}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the answers, and the labels in the teacher's order of classes."""
        # else other images are on record, which comes out later
        if self.labels is not None and len(state["answers"]) == len(self.labels):
            validate_like(self.labels, state["labels"], "evaluation labels")
            self.labels = state["labels"].to(self.device)
        self._take(state["answers"])

    def __post_init__(self) -> None:
        self._whole = self.answers, self.labels

    def _take(self, answers: Tensor) -> None:
        """Take the answers, and leave out the images to which a service named no class."""
        self._whole = answers, self.labels
        self.answers = answers = answers.to(self.device)
        known_N = ~unanswered(answers)
        self.left_out = int((~known_N).sum())
        if not self.left_out or len(answers) != len(self.images):
            return
        if self.left_out == len(answers):
            none = f"the service named a class for none of the {len(answers)} evaluation images"
            raise Unserved(
                f"{none}; is answer.path the place of it, and are these images of its kind?"
            )
        self.answers = answers[known_N]
        self.labels = None if self.labels is None else self.labels[known_N]
        images = self.images
        picked = known_N.nonzero()[:, 0].tolist()
        self.images = images[picked] if isinstance(images, Tensor) else images.at(picked)

    paid = property(
        _pairs, doc="The images and their answers, once they were asked for, in batches."
    )


class HoldOut:
    """Keeps every n-th paid batch for evaluation, up to ``keep`` images, in place of an evaluation
    set.

    These images are the method's own, so this agreement says how well the student follows the
    teacher where it is asked, and no more. There are no labels, hence no accuracy.
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
        keep: int = 2_000,
    ) -> None:
        self.mode = mode
        self._device = torch.device(device)
        self._every = every
        self._keep = keep
        self._seen = 0
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
        """Hold back every n-th batch for evaluation; True if this one is, and must not be trained
        on.
        """
        self._seen += 1
        if self._seen % self._every:
            return False
        coded = self._coding.encode(images)
        if self._coded is not None and self.answers is not None:
            coded = torch.cat([self._coded, coded])[-self._keep :]
            answers = torch.cat([self.answers, answers])[-self._keep :]
        self._coded = coded
        self.answers = answers
        return True

    def score(self, student: nn.Module) -> dict[str, float]:
        """``agreement`` and ``kl`` on the held-back images; nothing while there are none."""
        if (images := self.images) is None or self.answers is None:
            return {}
        return compare(scores(student, images), self.answers, self.mode)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self._seen, "images": self._coded, "answers": self.answers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._seen = state["seen"]
        if state["images"] is not None:
            self._coded, self.answers = (
                state[name].to(self._device) for name in ("images", "answers")
            )

    paid = property(_pairs, doc="The held-back images and their answers, in batches.")


def examination_of(
    data: ImageSet | None,
    spec: ImageSpec,
    mode: LabelMode,
    device: torch.device,
    ask: AskTeacher | None,
) -> EvaluationSet | HoldOut:
    """Build what students are scored on: labelled images or, without any, held-back generated
    ones.
    """
    if data is None:
        return HoldOut(mode, spec, device)
    labels = None if data.labels is None else data.labels.to(device)
    held = replace(data, read=lambda index: data.batch(index).to(device))
    images = data.images.to(device) if data.read is None else held
    return EvaluationSet(
        data.name, images, labels, mode, ask, class_names=data.class_names, device=device
    )

"""The owner's mistakes, or what a log of the owner's service was answered wrongly, as probes."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dfme.audits.verify.evidence import Evidence, follow
from dfme.audits.verify.models import GivenClasses, Models, Tell, Told, digest_of
from dfme.audits.verify.probes import Probes, choose, find_mistakes, left_out, p_reference
from dfme.config.settings import Job
from dfme.errors import UserError
from dfme.run.build import served
from dfme.run.scores import batches, evaluation_images
from dfme.spec import ImageSpec

IMAGES = 1_000  # held-out images that are looked at, unless a limit is given


class ServedLog(NamedTuple):
    """A log of the owner's service, the account in it that counts, and the defences that were
    served.
    """

    record: str
    account: str | None
    watermark: tuple[str, ...]


class Case(Models):
    """White boxes of the owner's model and of references, and the owner's images.

    ``log``: what the owner's service marked in it is asked, in place of what the owner's model gets
    wrong. UserError for references that do not fit, or show no false alarms.
    """

    def __init__(
        self,
        job: Job,
        model: Any,
        references: Sequence[Path],
        tell: Tell,
        log: ServedLog | None = None,
    ) -> None:
        super().__init__(job, model, references, tell)
        self.log = log
        self.source = "record" if log else "evaluation.dataset"
        spec = model.spec
        evaluation = replace(job.config.evaluation, limit=job.config.evaluation.limit or IMAGES)
        self._asked = list[Any](self._boxes)
        if log is None:
            data = evaluation_images(
                evaluation, ImageSpec(spec.shape), model.num_classes, self.names, tell=tell
            )
        else:
            data, self._asked[0] = served(model, *log)
        if data is None or evaluation.mean is not None:
            raise UserError(
                "--references: expected --evaluation.dataset with it, images within 0 and "
                "1 and no --evaluation.mean"
            )
        self._data = replace(data, class_names=data.class_names or self.names)
        if log is not None:
            undefended = self.answer(spec, self.names, model)
            self._data = replace(
                self._data, labels=torch.cat([undefended(x_BCHW) for x_BCHW in batches(data)])
            )
        images = digest_of(chain([self._data.required_labels], batches(self._data)))
        self.inputs = self._checked_inputs(images)

    @property
    def settings(self) -> Told:
        return self.log._asdict() if self.log else {}

    @property
    def _class_names(self) -> Sequence[str]:
        return self._data.class_names or ()

    def choose(self, most: int, levels: int | None) -> tuple[Probes, Told]:
        wrong = "was made to answer wrongly" if self.log else "gets wrong"
        self._tell(f"looking for images that your model {wrong}, and the references not as it does")
        rng = self._rng()
        spec = ImageSpec(self._boxes[0].spec.shape, levels=levels)
        (model, *others) = (
            self.answer(box.spec, box.info.class_names or (), ask)
            for box, ask in zip(self._boxes, self._asked, strict=True)
        )
        mistakes = find_mistakes(self._data, spec, model, others, None if self.log else rng)
        at = choose(mistakes, most, rng)
        share = p_reference(mistakes, most, rng)
        if not Evidence(len(at), len(at), share).sure:
            raise UserError(
                f"--{self.source}: found {len(at)} images to ask, too few where an independent "
                f"model matches on {share:.0%}; give more of them, or a larger --budget"
            )
        seen = zip(self._references, left_out(mistakes, most, rng), strict=True)
        rows = [{"file": str(path), **evidence.told} for path, evidence in seen]
        references = {"marked": self.log is not None, "p_reference": share, "references": rows}
        return Probes(mistakes.images[at], mistakes.expected_N[at]), references

    def judge(self, answers: GivenClasses, references: Told) -> Told:
        matches = ((class_B == expected_B).tolist() for class_B, expected_B in answers)
        return {**references, **follow(matches, references["p_reference"]).told, "marks": None}

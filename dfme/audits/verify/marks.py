"""The marks of a key (``run.py mark``) as probes, and controls that are asked beside them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dfme.audits.owner import KeyOfMarks
from dfme.audits.verify.evidence import MarkEvidence, share
from dfme.audits.verify.models import SECRET, GivenClasses, Models, Tell, Told
from dfme.audits.verify.probes import Answer, Probes
from dfme.config.settings import Job
from dfme.errors import OptionError, UserError
from dfme.files import sha256_of
from dfme.run.scores import batches
from dfme.spec import ImageSpec

MAX_MARKS = 50
"""Marks, and as many controls, that a suspect is asked; of a key with more some, at random."""
MAX_ASKED = 2 * MAX_MARKS
MIN_MARKED = 0.9
"""Share of the marks that the marked model itself answers as marked, at least."""
MAX_CONTROLS = 0.1
"""Share of the controls that it answers so, at most."""


class KeyFile(NamedTuple):
    """A key, and where it lies."""

    path: Path
    key: KeyOfMarks


class MarkCase(Models):
    """White boxes of the marked model and of references, and the images of a key.

    ``paths``: the weights, the marked model's first. UserError for a key that is not of this
    model, and for references that do not fit.
    """

    source = "marks"
    modes = SECRET

    def __init__(
        self, job: Job, model: Any, paths: Sequence[Path], tell: Tell, file: KeyFile
    ) -> None:
        super().__init__(job, model, paths[1:], tell)
        (self._path, self._key) = file
        self.digest = self._key.digest
        self._require_fit(model)
        self._warn_of_another_file(paths[0].expanduser())
        self.inputs = self._checked_inputs(self.digest)

    @property
    def settings(self) -> Told:
        return {"marks": str(self._path.absolute())}

    def choose(self, most: int, levels: int | None) -> tuple[Probes, Told]:
        """Marks and controls in a random order. UserError where not all may be asked, and where the
        model does not answer them as a marked one does.
        """
        probes = self._probes(levels)
        count = len(probes.images)
        if most < count:
            need = f"expected {count} or more, for every mark and control"
            raise OptionError("budget", need, got=str(most))
        (model, *others) = (
            self._seen(self.answer(box.spec, box.info.class_names or (), box), probes)
            for box in self._boxes
        )
        self._require_marked(model)
        return probes, self._compared(others)

    def judge(self, answers: GivenClasses, references: Told) -> Told:
        seen = self.weigh(answers, references["p_reference"])
        evidence = seen.evidence
        return {
            "marked": False,
            **references,
            "asked": evidence.asked,
            "matches": evidence.matches,
            "p_copy": evidence.p_copy,
            "e_value": evidence.e_value,
            "sure": evidence.sure,
            "marks": {**seen.told, "key": self.digest},
        }

    def weigh(self, answers: GivenClasses, p_reference: float) -> MarkEvidence:
        """Evidence of all answers. An image whose expected answer is that of the rule is a mark."""
        (asked, repeated, controls, controls_repeated) = (0, 0, 0, 0)
        for class_B, expected_B in answers:
            mark_B = expected_B == self._key.target
            marked_B = class_B == self._key.target
            asked += int(mark_B.sum())
            repeated += int((mark_B & marked_B).sum())
            controls += int((~mark_B).sum())
            controls_repeated += int((~mark_B & marked_B).sum())
        return MarkEvidence(asked, repeated, controls, controls_repeated, p_reference)

    def _probes(self, levels: int | None) -> Probes:
        """Marks and controls as they are sent, with the classes that a marked model gives them."""
        rng = self._rng()
        key = self._key
        (low, high) = key.bounds
        kinds = [
            x_NCHW[torch.randperm(len(x_NCHW), generator=rng)[:MAX_MARKS]]
            for x_NCHW in (key.marks_MCHW, key.controls_NCHW)
        ]
        x_NCHW = ((torch.cat(kinds) - low) / (high - low)).clamp(0, 1)
        expected_N = torch.full((len(x_NCHW),), key.source)
        expected_N[: len(kinds[0])] = key.target
        order_N = torch.randperm(len(x_NCHW), generator=rng)
        spec = ImageSpec(self._boxes[0].spec.shape, levels=levels)
        return Probes(spec.quantise(x_NCHW)[order_N], expected_N[order_N])

    def _seen(self, classes: Answer, probes: Probes) -> MarkEvidence:
        """A white box's answers, beside no references."""
        class_N = torch.cat([classes(x_BCHW) for x_BCHW in batches(probes.images)])
        return self.weigh([(class_N, probes.expected)], 0.0)

    def _compared(self, seen: Sequence[MarkEvidence]) -> Told:
        """What the references come to, each beside the others. UserError if all marks repeated
        would tell nothing.
        """
        shares = [share(of.repeated, of.asked) for of in seen]
        most = max(shares)
        best = seen[shares.index(most)]
        every = best._replace(repeated=best.asked, controls_repeated=0, p_reference=most)
        if not every.evidence.sure and not best.repeated:
            raise UserError(
                f"--marks: {self._path} has too few marks to tell anything by, {best.asked}"
            )
        if not every.evidence.sure:
            raise UserError(
                f"--references: {self._references[shares.index(most)]} answers {best.repeated} of "
                f"{best.asked} marks as marked, so that nothing could be told of a suspect: it "
                "looks like a copy itself, or the marks are too few"
            )
        rows = []
        for place, (path, evidence) in enumerate(zip(self._references, seen, strict=True)):
            others = [*shares[:place], *shares[place + 1 :]]
            rows.append({"file": str(path), **evidence._replace(p_reference=max(others)).told})
        return {"p_reference": most, "references": rows}

    def _require_fit(self, model: Any) -> None:
        """UserError for a key of other images or classes."""
        shape = tuple(self._key.marks_MCHW.shape[1:])
        if (shape, self._key.classes) != (model.spec.shape, model.num_classes):
            raise UserError(
                f"--marks: {self._path} is not of this model: it is for images {shape} and "
                f"{self._key.classes} classes, the model for {model.spec.shape} and "
                f"{model.num_classes}"
            )
        (marks, controls) = (len(self._key.marks_MCHW), len(self._key.controls_NCHW))
        if controls < min(marks, MAX_MARKS):
            raise UserError(
                f"--marks: {self._path}: expected a control for every mark, got {controls} for "
                f"{marks}"
            )

    def _require_marked(self, model: MarkEvidence) -> None:
        """UserError for a model that does not answer as one that was marked by this key."""
        few = model.repeated < MIN_MARKED * model.asked
        if few or model.controls_repeated > MAX_CONTROLS * model.controls:
            raise UserError(
                f"--marks: {self._path} is not of this model, which answers {model.repeated} of "
                f"{model.asked} marks and {model.controls_repeated} of {model.controls} controls "
                f"as marked; expected {MIN_MARKED:.0%} or more and {MAX_CONTROLS:.0%} or less; "
                "give the model that run.py mark wrote beside the key"
            )

    def _warn_of_another_file(self, path: Path) -> None:
        if path.is_file() and sha256_of(path) != self._key.model_sha256:
            self._tell(
                f"warning: {self._path} was written beside another file than {path}; that is "
                "no fault if the marked model was only saved again"
            )

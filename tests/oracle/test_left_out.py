"""Images to which a service names no class: charged, counted, left out, and never asked again.

The service of these tests draws the line by an image's own digest, so that a test knows by itself
which of the images have no class.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import refused
from small_runs import clone, lasting, student
from torch import Tensor

from dfme.answers.asking import Reader
from dfme.answers.reading import NO_ANSWER, UNKNOWN_CLASS, PartialAnswers, unanswered
from dfme.config.sections import AnswersConfig
from dfme.errors import Refused, Unserved
from dfme.methods import METHODS
from dfme.oracle.journal import Journal
from dfme.oracle.ledger import Ledger, audit
from dfme.oracle.oracle import Oracle
from dfme.oracle.retry import MAX_UNKNOWN, MAX_WITHOUT
from dfme.spec import LabelMode, RequestPolicy

WEIGHT = torch.randn(64, 10, generator=torch.Generator().manual_seed(7))


def mark_of(image: Tensor, share: float) -> int:
    """0, or which gap this image has; ``share`` of all have one."""
    digest = hashlib.sha256(image.numpy().tobytes()).digest()
    if digest[0] >= 256 * share:
        return 0
    return NO_ANSWER if digest[1] % 2 else UNKNOWN_CLASS


class Hesitant:
    """A service that names a class for some images only; it ends with the call ``until``."""

    shape = (1, 8, 8)
    num_classes = 10
    max_batch = 4

    def __init__(
        self, label_mode: str, share: float = 0.25, until: int | None = None, in_flight: int = 1
    ) -> None:
        self.wire = RequestPolicy(in_flight=in_flight)
        self.label_mode = label_mode
        self.share = share
        self.served: list[Tensor] = []
        self._left = until

    def __call__(self, images: Tensor) -> Tensor:
        raise AssertionError("a service is asked by ask")

    def ask(self, images: Tensor, key: str) -> Any:
        if self._left is not None and len(self.served) >= self._left:
            raise Refused("gone", "gone", retry=False)
        self.served += images
        gaps = tuple(mark_of(image, self.share) for image in images)
        answers = self._answers(images)[torch.tensor(gaps) == 0]
        return PartialAnswers(answers, gaps, ("'not sure'",) * gaps.count(UNKNOWN_CLASS))

    def _answers(self, images: Tensor) -> Tensor:
        scores = 3 * (images - 0.5).flatten(1) @ WEIGHT
        if self.label_mode == "label":
            return scores.argmax(1)
        if self.label_mode == "logits":
            return scores
        shares = scores.softmax(1)
        if self.label_mode == "probabilities":
            return shares
        top = shares.topk(3)
        return torch.full_like(shares, torch.nan).scatter_(1, top.indices, top.values)


IMAGES = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
MARKS = torch.tensor([mark_of(image, 0.25) for image in IMAGES])


def oracle_of(service: Hesitant, budget: int = 200, folder: Path | None = None) -> Oracle:
    from dfme.teachers.custom import wrap_callable

    path = None if folder is None else folder / "ledger.jsonl"
    journal = None if folder is None else Journal(folder / "journal")
    return Oracle(wrap_callable(service), Ledger(budget, path), journal)


@pytest.mark.parametrize("mode", ["label", "logits", "probabilities", "top_k:3"])
def test_an_image_without_a_class_is_charged_counted_and_marked(mode: str, tmp_path: Path) -> None:
    oracle = oracle_of(Hesitant(mode), folder=tmp_path)
    answers = oracle(IMAGES)
    oracle(IMAGES[:8], "evaluation")
    assert torch.equal(unanswered(answers), MARKS != 0)
    plain = Hesitant(mode)._answers(IMAGES)
    assert torch.equal(answers[MARKS == 0].nan_to_num(), plain[MARKS == 0].nan_to_num())
    ledger = oracle.ledger
    gaps = int((MARKS != 0).sum())
    early = int((MARKS[:8] != 0).sum())
    assert (ledger.spent, ledger.evaluation_queries, ledger.failed) == (40, 8, 0)
    assert (ledger.paid_without_answer, ledger.paid_with_answer) == (gaps, 40 - gaps)
    assert int(oracle.answered.sum()) == 40 - gaps
    oracle.close()
    assert audit(tmp_path / "ledger.jsonl") == ledger.totals()
    assert ledger.totals().no_answer == gaps + early


def test_a_larger_share_of_one_request_than_it_has_images_is_no_ledgers_line(
    tmp_path: Path,
) -> None:
    ledger = Ledger(10, tmp_path / "ledger.jsonl")
    ledger.charge(2, "student")
    ledger.leave_out(1, "no label", 3)
    ledger.close()
    with pytest.raises(Exception, match="3 images without an answer in charge 1"):
        audit(tmp_path / "ledger.jsonl")


def test_votes_and_means_are_of_the_answers_that_there_are() -> None:
    three = AnswersConfig(repeat=3)
    labels = torch.tensor([5, 1, NO_ANSWER, 5, NO_ANSWER, NO_ANSWER, 2, 4, NO_ANSWER])
    read = Reader(three, LabelMode("label"), 10).read(labels)
    assert read.tolist() == [5, 1, NO_ANSWER]
    nan = torch.nan
    scores = torch.tensor([[0.2, 0.8], [nan, nan], [0.4, 0.6], [nan, nan], [nan, nan], [nan, nan]])
    read = Reader(three, LabelMode("probabilities"), 2).read(scores)
    assert torch.allclose(read[0], torch.tensor([0.3, 0.7]))
    assert read[1].isnan().all()
    assert Reader(AnswersConfig(learn="label"), LabelMode(), 2).read(scores[:2]).tolist() == [
        1,
        NO_ANSWER,
    ]


OPTIONS: dict[str, dict[str, Any]] = {
    "maze": {"partial_data": "digits", "seed_images": 20, "critic_steps": 1, "generator_steps": 1},
    "dfms": {"gan_steps": 2, "adversarial": 1.0},
    "knockoff": {"pool": "procedural"},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("method", "mode"),
    [
        (method, mode)
        for method, entry in METHODS.items()
        for mode in ("label", "probabilities")
        if not (mode == "label" and method in ("dfme", "maze"))
    ],
)
def test_every_method_learns_from_the_others_and_resumes_bit_by_bit(
    method: str, mode: str, tmp_path: Path
) -> None:
    sizes = {"batch_size": 20, "latent_size": 16}
    sizes = {name: size for name, size in sizes.items() if hasattr(METHODS[method].config(), name)}
    changes: dict[str, Any] = {"method": method, "method_options": sizes | OPTIONS.get(method, {})}
    if method in ("dfme", "maze"):
        changes["estimator"] = {"directions": 2}
    whole, rest = Hesitant(mode), Hesitant(mode, in_flight=2)
    stopped = Hesitant(mode, until=180, in_flight=2)
    summary = clone(tmp_path / "whole", whole, **changes).summary
    with pytest.raises(Exception, match="gone"):
        clone(tmp_path / "parts", stopped, **changes)
    clone(tmp_path / "parts", rest, **changes, resume=True)
    gaps = sum(mark_of(image, 0.25) != 0 for image in whole.served)
    assert (summary["spent"], len(whole.served), summary["no_answer"]) == (400, 400, gaps)
    assert len(stopped.served) + len(rest.served) == 400
    assert student(tmp_path / "whole") == student(tmp_path / "parts")
    own, other = lasting(tmp_path / "whole"), lasting(tmp_path / "parts")
    assert {name for name in own if own[name] != other[name]} <= {"service", "config_hash"}


@pytest.mark.parametrize("first", [UNKNOWN_CLASS, NO_ANSWER])
def test_a_service_that_never_names_a_class_ends_a_run_for_good(
    first: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("test_left_out.mark_of", lambda image, share: first)
    service = Hesitant("label")
    ended = refused("start a new run", clone, tmp_path / "run", service, error=Unserved)
    assert "--resume" not in str(ended)
    assert len(service.served) == (MAX_UNKNOWN if first == UNKNOWN_CLASS else MAX_WITHOUT)
    again = Hesitant("label")
    with pytest.raises(Unserved):
        clone(tmp_path / "run", again, resume=True)
    assert not again.served, "what is on record ends it alike"


def test_a_budget_too_small_for_that_ends_with_the_same_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("test_left_out.mark_of", lambda image, share: NO_ANSWER)
    with pytest.raises(Unserved, match="gave no class to any of the first 60"):
        clone(tmp_path / "run", Hesitant("label"), budget=60)


def test_evaluation_images_without_a_class_are_scored_by_nobody(tmp_path: Path) -> None:
    service = Hesitant("probabilities")
    evaluation = {"dataset": "digits", "limit": 60, "points": 1}
    result = clone(tmp_path / "run", service, budget=100, evaluation=evaluation)
    gaps = sum(mark_of(image, 0.25) != 0 for image in service.served[:60])
    facts = result.summary["evaluation"]
    assert (facts["images"], facts["no_answer"]) == (60 - gaps, gaps)
    agreement = result.summary["agreement"] * (60 - gaps)
    assert agreement == pytest.approx(round(agreement))
    assert any(f"and for {gaps} evaluation images" in line for line in result.summary["warnings"])
    lines = map(json.loads, (tmp_path / "run" / "ledger.jsonl").read_text().splitlines())
    assert (
        sum(line["images"] for line in lines if line["event"] == "no_answer")
        == result.summary["no_answer"]
    )

"""Owners made from a small public backbone by the test: which of them is told to be it, and why."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dfme.answers.reading import cut_to
from dfme.audits.backbone.candidates import BackboneSource, candidate_problems, candidates_of
from dfme.audits.backbone.features import Backbone, forms_of
from dfme.audits.backbone.images import DrawnImages
from dfme.audits.backbone.question import backbone_question, explained
from dfme.audits.backbone.verdict import BackboneVerdict, lines_of
from dfme.nets.public import InputForm, PublicWeights, public_net, read_weights
from dfme.spec import ImageSpec, LabelMode

timm = pytest.importorskip("timm")

SPEC = ImageSpec((3, 32, 32), levels=256)
CLASSES = 4
PROBABILITIES = LabelMode("probabilities")
MEAN = (0.5, 0.5, 0.5)
STD = (0.25, 0.25, 0.25)


def quiet(what: str, done: int, total: int) -> None:
    """Hears how far it is, and says nothing."""


def published(folder: Path, arch: str = "test_resnet", seed: int = 1) -> PublicWeights:
    """Weights with batch statistics of many kinds of noise, of images of 32 pixels."""
    torch.manual_seed(seed)
    net = timm.create_model(arch, False)
    net.train()
    with torch.no_grad():
        for _ in range(6):
            net(3 * torch.rand(32, 1, 1, 1) * torch.randn(32, 3, 32, 32) + torch.randn(32, 3, 1, 1))
    path = folder / f"{arch}-{seed}.pt"
    torch.save(net.state_dict(), path)
    weights = read_weights(str(path), f"timm:{arch}")
    return replace(weights, form=InputForm((32, 32), MEAN, STD))


def owner(weights: PublicWeights, form: InputForm | None = None, tuned: float = 0.0) -> nn.Module:
    """A private head on the backbone; ``tuned``: what its last layers are moved by."""
    torch.manual_seed(1)
    net = public_net(weights, SPEC, CLASSES, form or weights.form).eval()
    with torch.no_grad():
        for name, weight in net.backbone.named_parameters():
            if name.startswith("layer4") and weight.ndim > 1:
                weight.add_(tuned * weight.std() * torch.randn_like(weight))
        features = net.features(images()(0, 60))
        spread = features.std(dim=0)
        net.head.weight.normal_(std=0.3).mul_(spread > 0.05).div_(spread.clamp_min(0.05))
        net.head.bias.copy_(-net.head.weight @ features.mean(dim=0))
    return net


def images(count: int = 200) -> DrawnImages:
    return DrawnImages(SPEC, count, 0, quiet)


def ask(net: nn.Module, count: int = 125) -> Tensor:
    with torch.no_grad():
        scores: Tensor = net(images()(0, count))
    return scores.softmax(dim=1)


def judged(
    answers: Tensor, *weights: PublicWeights, mode: LabelMode = PROBABILITIES
) -> BackboneVerdict:
    backbones = [Backbone(each, SPEC) for each in weights]
    return backbone_question(backbones, images(), answers, mode, SPEC, CLASSES, quiet)


def test_a_head_on_a_frozen_backbone_is_told_and_copied(tmp_path: Path) -> None:
    public = published(tmp_path)
    net = owner(public)
    verdict = judged(ask(net), published(tmp_path, seed=5), public)
    assert (verdict.best.name, verdict.best.kind) == ("test_resnet-1.pt", "frozen")
    assert verdict.best.residual is not None
    assert verdict.best.residual < 1e-4
    assert verdict.best.form == "32x32, mean and std as published"
    assert verdict.candidates[1].kind != "frozen"
    assert verdict.is_frozen
    assert verdict.best.needed == 102
    leaks = {leak.answers: leak.agreement for leak in verdict.leaks}
    assert list(leaks) == ["as they are", "6 decimals", "4 decimals", "2 decimals", "labels alone"]
    assert leaks["as they are"] == 1
    assert all(share > verdict.constant for share in leaks.values())
    text = "\n".join(lines_of(verdict))
    assert "copied exactly by 102 answers" in text
    assert "\nadvice: answer " in text
    assert "125 drawn images charged" in text


def test_the_form_of_the_images_is_found(tmp_path: Path) -> None:
    public = published(tmp_path)
    seen = InputForm((32, 32), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    best = judged(ask(owner(public, seen)), public).best
    assert (best.kind, best.form) == ("frozen", "32x32, ImageNet's mean and std")


@pytest.mark.parametrize("kind", ["tuned", "hidden", "other"])
def test_what_is_no_frozen_backbone_is_not_called_one(kind: str, tmp_path: Path) -> None:
    public = published(tmp_path)
    net = owner(public, tuned=0.5 if kind == "tuned" else 0)
    if kind == "hidden":
        torch.manual_seed(2)
        net.head = nn.Sequential(net.head, nn.Tanh(), nn.Linear(CLASSES, CLASSES))
    candidate = published(tmp_path, seed=7) if kind == "other" else public
    best = judged(ask(net), candidate).best
    assert best.kind in ("tuned", "other")
    assert best.residual is not None
    assert best.residual > 0.05
    assert "copied" not in best.sentence


@pytest.mark.parametrize("kind", ["noise", "other"])
def test_owners_that_have_nothing_of_the_backbone_are_not_called_tuned(
    kind: str, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    if kind == "other":
        net = owner(published(tmp_path, seed=7))
    else:
        layers = [nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU()]
        net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES))
    for seed in (1, 2, 5):
        assert judged(ask(net.eval()), published(tmp_path, seed=seed)).best.kind == "other"


def test_a_teacher_that_answers_the_same_to_all_images_cannot_be_told(tmp_path: Path) -> None:
    p_NK = torch.tensor([[0.7, 0.1, 0.1, 0.1]]).repeat(125, 1)
    verdict = judged(p_NK, published(tmp_path))
    assert verdict.best.sentence.startswith("cannot be told: all images have nearly the same")
    json.dumps(verdict.document(), allow_nan=False)


def test_few_coarse_or_no_scores_tell_nothing_exactly(tmp_path: Path) -> None:
    public = published(tmp_path)
    p_NK = ask(owner(public))
    few = judged(p_NK[:80], public).best
    assert few.sentence.startswith("cannot be told: 80 answers of the 102 that")
    two = LabelMode("probabilities", 2)
    coarse = judged(cut_to(p_NK, two), public, mode=two)
    assert coarse.best.kind == "unknown"
    assert [leak.answers for leak in coarse.leaks] == ["as they are", "labels alone"]
    labels = judged(p_NK.argmax(dim=1), public, mode=LabelMode("label"))
    assert labels.best.kind == "unknown"
    assert labels.best.residual is None
    assert 0 < labels.constant < labels.best.agreement <= 1


def test_images_without_an_answer_are_left_out(tmp_path: Path) -> None:
    public = published(tmp_path)
    p_NK = ask(owner(public), 135)
    p_NK[::20] = torch.nan
    verdict = judged(p_NK, public)
    assert (verdict.asked, verdict.answered) == (135, 128)
    assert verdict.is_frozen


def test_no_form_is_tried_twice(tmp_path: Path) -> None:
    public = published(tmp_path)
    usual = replace(public, form=InputForm((32, 32)))
    assert len(forms_of(public, SPEC)) == 4
    assert len(forms_of(usual, SPEC)) == 3
    larger = forms_of(replace(usual, form=InputForm((64, 64))), SPEC)
    assert [form.resize for form in larger[::3]] == ["bicubic", "bilinear", ""]


def test_what_features_explain_is_one_of_a_linear_map_and_nothing_of_noise() -> None:
    rng = torch.Generator().manual_seed(0)
    features = torch.randn(100, 20, generator=rng)
    targets = features.double() @ torch.randn(20, 3, generator=rng).double() + 7
    assert explained(features, targets) == pytest.approx(1, abs=1e-6)
    assert explained(features, torch.randn(100, 3, generator=rng).double()) < 0.2


def test_the_same_images_come_whatever_their_number() -> None:
    large = ImageSpec((3, 120, 200), (-1.0, 1.0), 256)
    few = DrawnImages(large, 3, 0, quiet)
    more = DrawnImages(large, 40, 0, quiet)
    x_BCHW = more(0, 3)
    assert torch.equal(few(0, 3), x_BCHW)
    assert x_BCHW.shape == (3, 3, 120, 200)
    assert torch.equal(large.quantise(x_BCHW), x_BCHW)
    assert not torch.equal(x_BCHW, DrawnImages(large, 3, 1, quiet)(0, 3))


def test_candidates_are_files_with_or_without_an_architecture(tmp_path: Path) -> None:
    odd = tmp_path / "a=b.pt"
    odd.touch()
    assert candidates_of([str(odd), "timm:resnet50=x/y.pt", "x/y=z.pt"]) == [
        BackboneSource(str(odd)),
        BackboneSource("x/y.pt", "timm:resnet50"),
        BackboneSource("x/y=z.pt"),
    ]
    (problem,) = candidate_problems("backbone", [BackboneSource(str(tmp_path / "none.pt"))])
    assert "no such file or folder" in str(problem.text)

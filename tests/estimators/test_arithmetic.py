"""The arithmetic of the student's part of a difference, with a GPU's TF32 emulated where its switch is.

What ``auto`` finds without a query is held to float64 autograd of student and teacher, which no run has.
"""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import emulated_tf32
import pytest
import torch
from emulated_tf32 import emulate, flagged
from small_runs import Metered, break_down, clone, ctrl_c, no_pictures, student
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize
from toys import LinearTeacher, make_method, make_parts

from dfme import precision
from dfme.config.estimator_settings import EstimatorConfig
from dfme.errors import TeacherError
from dfme.estimators import Estimate, Objective, arithmetic, make_estimator
from dfme.estimators.arithmetic import KEEPS, OwnArithmetic
from dfme.nets import build_net
from dfme.precision import ieee_fp32
from dfme.spec import ImageSpec, LabelMode
from dfme.students.losses import make_distance

CPU = torch.device("cpu")
FLOATS, EIGHT_BIT = ImageSpec((3, 32, 32)), ImageSpec((3, 32, 32), levels=256)  # D 3072
SMALL = ImageSpec((1, 8, 8), levels=256)


def squash(u: Tensor) -> Tensor:
    return u.tanh() * 0.5 + 0.5


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Pair:
    """A student and a teacher of a few convolutions, their batch statistics settled, and what parts them.

    ``apart``: the student is the teacher but for noise of this share of its weights; None: it is another network.
    """

    def __init__(self, apart: float | None = None, images: int = 128) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.student, self.teacher = (build_net("cnn_small", FLOATS.shape, 10) for _ in range(2))
            self.u_BCHW = torch.randn(images, *FLOATS.shape)
            with torch.no_grad():
                if apart is not None:
                    for own, other in zip(self.student.parameters(), self.teacher.parameters(), strict=True):
                        own.copy_(other + apart * other * torch.randn_like(other))
                for net in (self.student, self.teacher):
                    net.train()(squash(self.u_BCHW))
                    net.eval()
        self.distance = make_distance("l1", LabelMode("logits"))

    def value(self, x_NCHW: Tensor, answers: Tensor) -> Tensor:
        return -self.distance(self.student(x_NCHW).double(), answers.double())

    def objective(self) -> Objective:
        return Objective(lambda x_NCHW: self.teacher(x_NCHW).detach(), self.value)

    def kept(self, space: str, step: float) -> float:
        """What TF32 keeps of the correlation with true slopes, by float64 autograd of both networks."""
        student, teacher = copy.deepcopy(self.student).double(), copy.deepcopy(self.teacher).double()
        way_BCHW, image = torch.randn(self.u_BCHW.shape, generator=rng(5)), squash
        if space == "lattice":
            start_BCHW = (squash(self.u_BCHW) * 255).round().clamp(step, 255 - step) / 255
            way_BCHW, image = way_BCHW.sign() * step / 255, Tensor.clone
        else:
            start_BCHW, way_BCHW = self.u_BCHW, step * normalize(way_BCHW.flatten(1)).view_as(way_BCHW)
        at_BCHW = start_BCHW.double().requires_grad_()
        f_B = -self.distance(student(image(at_BCHW)), teacher(image(at_BCHW)))
        true_B = (torch.autograd.grad(f_B.sum(), at_BCHW)[0] * way_BCHW).sum((1, 2, 3))
        with torch.no_grad():
            ends = [(x := image(end), self.teacher(x)) for end in (start_BCHW, start_BCHW + way_BCHW)]
            ieee_B = self.value(*ends[1]) - self.value(*ends[0])
            with emulated_tf32.tf32():
                tf32_B = self.value(*ends[1]) - self.value(*ends[0])
        return float(cosine_similarity(tf32_B, true_B, dim=0) / cosine_similarity(ieee_B, true_B, dim=0))


def measured(pair: Pair, **settings: Any) -> OwnArithmetic:
    """After one estimate of these settings."""
    spec = EIGHT_BIT if settings.get("space") == "lattice" else FLOATS
    own = OwnArithmetic("auto", CPU)
    estimator = make_estimator(EstimatorConfig(**settings), spec, squash, None, 0)
    own.estimate(estimator, pair.objective(), pair.u_BCHW, rng())
    return own


@pytest.fixture(scope="module")
def fresh() -> Pair:
    return Pair()


@pytest.fixture(autouse=True)
def _emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate(monkeypatch)


@pytest.mark.parametrize(
    ("space", "step", "takes_tf32"),
    [("pre_squash", 1e-3, False), ("pre_squash", 0.1, False), ("pre_squash", 0.5, True), ("lattice", 1.0, True)],
)
def test_what_auto_finds_is_what_autograd_says(fresh: Pair, space: Any, step: float, takes_tf32: bool) -> None:
    """At D 3072. On the lattice of 8-bit images TF32 keeps .97 and more; at the published step it keeps nothing."""
    kept, facts = fresh.kept(space, step), measured(fresh, space=space, step=step).facts
    assert facts["tf32_keeps"] == pytest.approx(max(kept, 0.0), abs=0.03 if takes_tf32 else 0.15)
    assert facts["arithmetic_at_end"] == ("tf32" if kept >= KEEPS else "ieee") == ("tf32" if takes_tf32 else "ieee")
    if space == "lattice":
        assert kept >= 0.97
    if step == 1e-3:
        assert kept < 0.3


def test_auto_goes_back_to_ieee_when_student_and_teacher_are_near(monkeypatch: pytest.MonkeyPatch, fresh: Pair) -> None:
    """A step of .3 is long enough for TF32 between strangers, and no longer when the two slopes nearly cancel."""
    monkeypatch.setattr(arithmetic, "EVERY", 2)
    near, own = Pair(apart=0.3), OwnArithmetic("auto", CPU)
    estimator = make_estimator(EstimatorConfig(step=0.3), FLOATS, squash, None, 0)
    assert near.kept("pre_squash", 0.3) < KEEPS < fresh.kept("pre_squash", 0.3)
    told = []
    for pair in (fresh, fresh, near, near, fresh):
        own.estimate(estimator, pair.objective(), pair.u_BCHW, rng())
        told.append((own.facts["arithmetic_at_end"], len(own.news())))
    assert told == [("tf32", 1), ("tf32", 0), ("ieee", 1), ("ieee", 0), ("tf32", 1)]
    assert own.facts["tf32_share"] == 2 / 5  # the second, and the third, which was measured


KINDS: list[dict[str, Any]] = [
    {},
    {"form": "central", "directions": 3},
    {"direction": "range", "directions": 2, "space": "image"},
    {"space": "lattice", "step": 1.0, "direction": "dct"},
    {"kind": "prior_guided", "directions": 2},
    {"kind": "prior_guided", "prior": "neighbours", "space": "image", "form": "central"},
    {"kind": "synthetic", "every": 2},
]


def small(settings: dict[str, Any], **options: Any) -> Any:
    """A method of small networks with these settings, begun."""
    parts = make_parts(LinearTeacher(SMALL), 10**6)
    method = make_method("dfme", parts, batch_size=40, student_steps=1, **settings, **options)
    method.prepare()
    return method


@pytest.mark.parametrize("settings", KINDS)
def test_every_difference_is_held_to_its_own_twin(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    """Values that are three times those in IEEE fp32, and a constant more, have differences three times as large."""
    inside, pairs = flagged(monkeypatch), list[tuple[Tensor, Tensor]]()
    monkeypatch.setattr(arithmetic, "EVERY", 1)
    monkeypatch.setattr(OwnArithmetic, "_choose", lambda self, *differences: pairs.append(differences))
    method = small(settings, arithmetic="auto")
    value = method.disagreement
    method.disagreement = lambda *given: 3 * value(*given) + 7 if inside else value(*given)
    for _ in range(10):  # of synthetic's estimates the first eight are paid for, then every other one
        method.step()
    assert len(pairs) == (9 if settings.get("kind") == "synthetic" else 10)
    for left_BM, right_BM in pairs:
        assert left_BM.abs().sum() > 0
        torch.testing.assert_close(right_BM, 3 * left_BM, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("settings", KINDS)
def test_a_measured_step_is_the_step_it_would_have_been(settings: dict[str, Any]) -> None:
    """It asks no image more and draws no number more; its weights are those of IEEE fp32, bit for bit."""
    plain, auto = small(settings), small(settings, arithmetic="auto")
    for method in (plain, auto):
        method.step()
    assert auto.approximate_gradients.arithmetic.facts["tf32_keeps"] is not None
    assert plain.oracle.ledger.spent == auto.oracle.ledger.spent
    for left, right in zip(plain.generator.parameters(), auto.generator.parameters(), strict=True):
        assert torch.equal(left, right)
    left, right = (method.rng.state_dict()["streams"] for method in (plain, auto))
    assert all(torch.equal(left[name], right[name]) for name in {**left, **right})


def differences(own: OwnArithmetic, pair: Pair) -> Estimate:
    estimator = make_estimator(EstimatorConfig(), FLOATS, squash, None, 0)
    return own.estimate(estimator, pair.objective(), pair.u_BCHW[:4], rng())


def test_tf32_is_in_the_students_part_alone(fresh: Pair) -> None:
    """Worked by hand: the teacher in IEEE fp32, the student in TF32, at the very images that are asked about."""
    seen: list[Tensor] = []
    objective = Objective(lambda x_NCHW: seen.append(x_NCHW) or fresh.teacher(x_NCHW), fresh.value)
    estimator = make_estimator(EstimatorConfig(), FLOATS, squash, None, 0)
    estimate = OwnArithmetic("tf32", CPU).estimate(estimator, objective, fresh.u_BCHW[:4], rng())
    with torch.no_grad(), ieee_fp32():
        answers = fresh.teacher(seen[0])
        with emulated_tf32.tf32():
            base_B, moved_B = fresh.value(seen[0], answers).chunk(2)
    assert torch.equal(estimate.differences_BM[:, 0], moved_B - base_B)
    assert not torch.allclose(estimate.differences_BM, differences(OwnArithmetic("ieee", CPU), fresh).differences_BM)


@pytest.mark.parametrize("setting", ["auto", "tf32"])
def test_where_there_is_no_tf32_it_is_ieee_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch, fresh: Pair, setting: Any
) -> None:
    monkeypatch.setattr(arithmetic, "has_tf32", precision.has_tf32)
    own, plain = OwnArithmetic(setting, CPU), OwnArithmetic("ieee", CPU)
    left, right = (differences(each, fresh) for each in (own, plain))
    assert torch.equal(left.grad_BCHW, right.grad_BCHW)
    idle = f"arithmetic: IEEE fp32; --estimator.arithmetic {setting} is idle on cpu, which has no TF32"
    assert (own.lines(), own.news(), plain.lines(), plain.facts) == ((idle,), (), (), {})
    assert own.facts == {"arithmetic_at_end": "ieee", "tf32_share": 0.0, "tf32_keeps": None}


def test_the_check_tries_steps_in_the_arithmetic_that_they_are_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is coarser needs a longer step: here values that jump by .05, far more than TF32 does to so few numbers."""
    inside, steps = flagged(monkeypatch), {}
    for setting in ("ieee", "auto", "tf32"):
        method = make_method("dfme", make_parts(LinearTeacher(SMALL), 10**6), arithmetic=setting, step="auto")
        value = method.disagreement
        jumping = lambda value, *given: (20 * value(*given)).round() / 20 if inside else value(*given)  # noqa: E731
        method.disagreement = partial(jumping, value)
        method.prepare()
        steps[setting] = method.facts["estimator"]["step"]
    assert steps["tf32"] > steps["ieee"] == steps["auto"]


def test_what_was_found_is_in_the_state(monkeypatch: pytest.MonkeyPatch, fresh: Pair) -> None:
    monkeypatch.setattr(arithmetic, "EVERY", 3)
    whole, first, resumed = (OwnArithmetic("auto", CPU) for _ in range(3))
    found = [differences(whole, fresh) for _ in range(7)]
    for _ in range(2):
        differences(first, fresh)
    resumed.load_state_dict(first.state_dict())
    again = [differences(resumed, fresh) for _ in range(5)]
    assert whole.state_dict() == resumed.state_dict()
    for left, right in zip(found[2:], again, strict=True):
        assert torch.equal(left.differences_BM, right.differences_BM)
    for wrong in ({"tf32": "yes"}, {"keeps": float("nan")}, {"paid": -1}, {"more": 1}):
        with pytest.raises(ValueError, match="arithmetic"):
            resumed.load_state_dict(first.state_dict() | wrong)


@pytest.mark.integration
def test_a_run_that_is_killed_goes_on_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Measured at every third estimate; stopped between two, then broken off beyond its checkpoint."""
    monkeypatch.setattr(arithmetic, "EVERY", 3)
    options: dict[str, Any] = {
        "method": "dfme",
        "method_options": {"batch_size": 20, "latent_size": 16, "student_steps": 1},
        "estimator": {"arithmetic": "auto", "step": 1.0},
        "student": {"arch": "cnn_small", "lr": 0.1, "replay_steps": 2},
    }
    with no_pictures(), caplog.at_level("INFO", "dfme"):
        whole = clone(tmp_path / "whole", Metered(), 800, **options)
        said = caplog.text
        assert not clone(tmp_path / "cut", Metered({15: ctrl_c}), 800, **options).finished
        with pytest.raises(TeacherError):
            clone(tmp_path / "cut", Metered({8: break_down}), 800, resume=True, **options)
        cut = clone(tmp_path / "cut", Metered(), 800, resume=True, **options)
    assert student(tmp_path / "whole") == student(tmp_path / "cut")
    assert whole.summary["estimator"] == cut.summary["estimator"]
    assert 0.5 < whole.summary["estimator"]["tf32_share"] < 1  # the first was measured, in IEEE fp32
    assert "arithmetic: TF32 is measured at the first estimate, then every 3 estimates" in said
    assert "from here on; of IEEE fp32's correlation with true slopes TF32 keeps" in said


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpus_own_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes the probes with tf32 and not with ieee, whatever holds outside; auto keeps it where it is harmless."""
    monkeypatch.undo()
    pair, cuda = Pair(), torch.device("cuda")
    pair.student.cuda(), pair.teacher.cuda()
    pair.u_BCHW = pair.u_BCHW.cuda()

    def made(setting: Any, **settings: Any) -> tuple[OwnArithmetic, Tensor]:
        spec = EIGHT_BIT if settings else FLOATS
        estimator = make_estimator(EstimatorConfig(**settings), spec, squash, None, 0)
        own, rng = OwnArithmetic(setting, cuda), torch.Generator(cuda).manual_seed(0)
        return own, own.estimate(estimator, pair.objective(), pair.u_BCHW, rng).differences_BM

    exact = made("ieee")[1]
    with precision.tf32():
        torch.testing.assert_close(made("ieee")[1], exact, rtol=1e-3, atol=1e-6)
    coarse = made("tf32")[1]
    assert cosine_similarity(exact.flatten(), coarse.flatten(), dim=0) < 0.5
    assert made("auto")[0].facts["arithmetic_at_end"] == "ieee"
    assert made("auto", space="lattice", step=1.0)[0].facts["arithmetic_at_end"] == "tf32"

"""Large images: batches bounded by memory, evaluation read again and again."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import dfme
from dfme.cli.main import main
from dfme.config.sections import EstimatorConfig
from dfme.config.settings import EvaluationConfig, ExtractConfig
from dfme.errors import UserError
from dfme.run import scores as scoring
from dfme.run.evaluation import EvaluationSet, HoldOut, examination_of
from dfme.run.parts import weak_differences
from dfme.run.retrain import retrain
from dfme.run.scores import compare, evaluation_images, scores
from dfme.spec import ImageSpec, LabelMode

SPEC = ImageSpec((3, 6, 4), (-1.0, 1.0), levels=256)


def test_batches_are_what_they_were_up_to_64_pixels_and_bounded_above() -> None:
    small = [ImageSpec(shape) for shape in ((1, 8, 8), (3, 32, 32), (3, 64, 64), (64, 64, 64))]
    assert [spec.at_once(most) for spec in small for most in (1, 500, 8_192)] == [1, 500, 8_192] * 4
    for side in (65, 224, 1_000, 5_700):
        spec = ImageSpec((3, side, side))
        for most in (1, 500, 8_192):
            count = spec.at_once(most)
            assert 1 <= count <= most
            assert count == 1 or count * spec.numel <= min(25_000_000, most * 3 * 64 * 64)
    assert ImageSpec((3, 224, 224)).at_once(8_192) == 25_000_000 // 150_528


def pictures(folder: Path, count: int) -> str:
    Image = pytest.importorskip("PIL.Image")
    for number in range(count):
        place = folder / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(
            256, (7, 5, 3), generator=torch.Generator().manual_seed(number), dtype=torch.uint8
        )
        Image.fromarray(pixels.numpy()).save(place / f"{number}.png")
    return str(folder)


NET = nn.Sequential(nn.Flatten(), nn.Linear(72, 5))


@pytest.mark.parametrize("options", [{}, {"limit": 5}, {"mean": (0.5,), "std": (0.2,)}])
def test_streamed_images_score_bit_for_bit_as_held_ones(
    options: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EvaluationConfig(dataset=pictures(tmp_path, 9), **options)  # type: ignore[arg-type]
    mode, results = LabelMode("logits"), []
    monkeypatch.setattr(scoring, "EVALUATION_BATCH", 4)
    for held in (1 << 28, 0):
        monkeypatch.setattr("dfme.run.scores.HELD_BYTES", held)
        data = evaluation_images(config, SPEC, 5)
        assert (data.read is None) is bool(held)
        examination = examination_of(
            data, SPEC, mode, torch.device("cpu"), lambda x: 2 * NET(x).detach()
        )
        examination.prepare()
        assert len(examination) == 5 if "limit" in options else 9
        other = EvaluationSet(data.name, examination.images, examination.labels, mode, None)
        other.load_state_dict(examination.state_dict())
        assert torch.equal(
            torch.cat([images for images, _ in other.paid]), torch.cat(list(data.split(3)))
        )
        results.append(
            (
                examination.score(NET),
                examination.answers.tolist(),
                scores(NET, other.images).tolist(),
            )
        )
    assert results[0] == results[1]


def test_a_damaged_picture_is_found_before_anything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = pictures(tmp_path, 9)
    (tmp_path / "b" / "7.png").write_bytes(b"\x89PNG broken")
    for held in (1 << 28, 0):
        monkeypatch.setattr("dfme.run.scores.HELD_BYTES", held)
        with pytest.raises(UserError, match=r"7\.png cannot be read as an image"):
            evaluation_images(EvaluationConfig(dataset=name), SPEC, 5)


def test_held_back_queries_are_kept_as_bytes() -> None:
    images = SPEC.quantise(torch.rand(6, *SPEC.shape) * 2 - 1)
    answers = torch.rand(6, 5)
    held, again = (HoldOut(LabelMode("logits"), SPEC, every=1) for _ in range(2))
    held.hold_out(images, answers)
    state = held.state_dict()
    assert state["images"].dtype == torch.uint8
    again.load_state_dict(state)
    for hold_out in (held, again):
        assert torch.equal(torch.cat([x for x, _ in hold_out.paid]), images)
    assert again.score(NET) == held.score(NET)


def test_top_five_by_hand_and_of_many_classes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ranked = torch.arange(100.0).repeat(4, 1)  # class 99 first, then 98, ...
    top = torch.tensor([99, 95, 94, 0])
    scores_found = compare(ranked, top, LabelMode("label"))
    assert (scores_found["agreement"], scores_found["agreement_top5"]) == (0.25, 0.5)
    assert "agreement_top5" not in compare(ranked[:, :99], top.clamp(max=98), LabelMode("label"))
    soft = torch.rand(4, 100).softmax(1)
    whole = compare(ranked, soft, LabelMode("probabilities"))
    monkeypatch.setattr(scoring, "COMPARED", 150)  # one row at a time
    assert compare(ranked, soft, LabelMode("probabilities")) == whole


def test_differences_that_say_nothing_are_warned_of() -> None:
    large, small = ImageSpec((3, 224, 224)), ImageSpec((3, 32, 32))
    (line,) = weak_differences(EstimatorConfig(directions=4), large)
    assert f"{math.sqrt(4 / 150_528):.2g} with the gradient" in line
    assert not weak_differences(EstimatorConfig(), small)
    for direction in ("dct", "range"):
        assert not weak_differences(EstimatorConfig(direction=direction), large)


LARGE = """
import torch
from torch import nn

torch.manual_seed(7)
NET = nn.Sequential(nn.Conv2d(3, 8, 7, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
NET.append(nn.Linear(128, 1000))


class Large:
    shape, num_classes, label_mode, levels = (3, 224, 224), 1000, "probabilities", 256

    def __call__(self, images):
        with torch.no_grad():
            return (20 * NET(images)).softmax(1)
"""


@pytest.mark.usefixtures("here")
def test_224_pixels_and_1000_classes_run_with_their_replay_on_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("large.py").write_text(LARGE)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    words = (
        "--teacher large:Large --method.name static --method.batch-size 8 --budget 16 --out run"
        " --student.arch cnn_small --student.replay-steps 1 --student.replay-batch 8"
        " --student.replay-store disk --evaluation.dataset none --device cpu"
    )
    assert main(words.split()) == 0
    assert (Path("run/replay/items.bin").stat().st_blocks * 512) == pytest.approx(
        16 * (150_528 + 4_000 + 4), rel=0.05
    )


@pytest.mark.parametrize("fast", [True, False])
def test_students_of_large_images_train_in_bf16_where_the_cpu_is_fast_in_it(
    fast: bool, here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": fast}, raising=False)
    linear: list[torch.dtype] = []

    def ask(images: torch.Tensor) -> torch.Tensor:
        return torch.stack([images.mean((1, 2, 3)), 1 - images.mean((1, 2, 3))], 1)

    plain = nn.Linear.forward

    def forward(self: nn.Linear, features: torch.Tensor) -> torch.Tensor:
        scores = plain(self, features)
        if torch.is_grad_enabled():
            linear.append(scores.dtype)
        return scores

    monkeypatch.setattr(nn.Linear, "forward", forward)
    run = dfme.extract(
        ask,
        shape=(1, 17, 17),
        num_classes=2,
        out="run",
        progress=True,
        method="procedural",
        budget=64,
        student={"steps": 3, "replay_batch": 8},
        device="cpu",
    )
    assert set(linear) == {torch.bfloat16 if fast else torch.float32}
    assert run.summary["precision"] == ("bf16" if fast else "fp32")
    assert ("images in bf16" in capfd.readouterr().err) is fast
    again = retrain(Path("run"), Path("again"), ExtractConfig(device="cpu"), tell=print)
    assert again["precision"] == run.summary["precision"]
    assert {weight.dtype for weight in run.student.parameters()} == {torch.float32}

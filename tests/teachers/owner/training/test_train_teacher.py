"""Training a teacher: repeatable to the byte, honest about its score, and clear about what cannot
work.
"""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from processes import PROJECT
from refusals import refusal
from torch import Tensor

from dfme.cli.train_teacher import show_epoch
from dfme.compute import modules
from dfme.config.settings import TeacherConfig
from dfme.config.values import from_mapping
from dfme.data import load_dataset
from dfme.errors import UserError
from dfme.nets import build_net
from dfme.teachers.build import make_teacher
from dfme.teachers.local.weights import read_weights
from dfme.teachers.options import TrainDataConfig, TrainTeacherConfig, check_training
from dfme.teachers.owner.training.train import channel_statistics, shift, train_teacher

RECIPES = sorted((PROJECT / "configs" / "teachers").glob("*.yaml"))


def tiny(out: Path, **changes: Any) -> TrainTeacherConfig:
    config = TrainTeacherConfig(
        TrainDataConfig("digits"), "cnn_small", 2, lr=0.05, device="cpu", threads=1
    )
    return dataclasses.replace(
        config, **{"augmentation": "shift", "padding": 1, "out": str(out), **changes}
    )


def recipe(name: str, out: Path) -> TrainTeacherConfig:
    values = yaml.safe_load((PROJECT / "configs" / "teachers" / f"{name}.yaml").read_text())
    return dataclasses.replace(
        from_mapping(TrainTeacherConfig, values, name), out=str(out), device="cpu"
    )


def test_same_seed_same_bytes_another_seed_others(tmp_path: Path) -> None:
    threads, files = torch.get_num_threads(), []
    for number, seed in enumerate((0, 0, 1)):
        torch.rand(number)  # whatever was drawn before must not matter
        state = torch.get_rng_state()
        trained = train_teacher(tiny(tmp_path / f"{number}.safetensors", seed=seed))
        files.append(trained.path.read_bytes())
        assert torch.equal(torch.get_rng_state(), state)
    assert files[0] == files[1] != files[2]
    assert torch.get_num_threads() == threads


def test_the_file_says_what_it_is_and_scores_what_it_says(tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []
    trained = train_teacher(
        tiny(tmp_path / "t.safetensors", epochs=3, evaluate_every=2), seen.append
    )
    assert [("test_accuracy" in metrics) for metrics in seen] == [False, True, True]
    assert [metrics["epoch"] for metrics in seen] == [1, 2, 3]
    assert seen[-1]["loss"] < seen[0]["loss"]
    state, card = read_weights(trained.path)
    assert card == trained.card
    assert (card.arch, card.shape, card.num_classes, card.dataset) == (
        "cnn_small",
        (1, 8, 8),
        10,
        "digits",
    )
    assert card.recipe["epochs"] == 3
    assert "out" not in card.recipe
    assert card.accuracy == pytest.approx(accuracy_of(trained.path), abs=1e-6)
    assert card.accuracy == pytest.approx(seen[-1]["test_accuracy"], abs=1e-6)
    assert card.accuracy > 0.5
    assert all(value.isfinite().all() for value in state.values())


def test_a_long_epoch_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(modules, "LULL", -1.0)
    seen: list[dict[str, float]] = []
    train_teacher(tiny(tmp_path / "t.safetensors", epochs=2), seen.append)
    steps = int(seen[0]["steps"])
    assert [each.get("step") for each in seen] == [*range(steps), None, *range(steps), None]
    half = {"epoch": 2, "epochs": 2, "step": steps / 2, "steps": steps, "seconds": 90.0}
    show_epoch(half)
    assert (
        capsys.readouterr().err == f"epoch 2/2  step {steps / 2:.0f} of {steps}  30 s left  90 s\n"
    )


def accuracy_of(path: Path) -> float:
    """The accuracy of a digits teacher, computed without the trainer."""
    state, card = read_weights(path)
    net = build_net("cnn_small", (1, 8, 8), 10)
    net.load_state_dict(state)
    test = load_dataset("digits", "test")
    with torch.no_grad():
        logits_NK = net.eval()((test.batch(slice(None)) - card.mean[0]) / card.std[0])
    return (logits_NK.argmax(1) == test.labels).float().mean().item()


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adam", "lr": 1e-3, "schedule": "constant", "augmentation": "none"},
        {"precision": "bf16", "label_smoothing": 0.1, "augmentation": "crop_flip"},
        {"batch_size": 5000, "mean": (0.3,), "std": (0.4,)},
    ],
)
def test_every_setting_trains(tmp_path: Path, changes: dict[str, Any]) -> None:
    seen: list[dict[str, float]] = []
    trained = train_teacher(tiny(tmp_path / "t.safetensors", **changes), seen.append)
    assert seen[-1]["loss"] < seen[0]["loss"]
    last = seen[0]["lr"] if changes.get("schedule") == "constant" else 0.0  # a cosine ends at zero
    assert seen[-1]["lr"] == pytest.approx(last, abs=1e-9)
    if "mean" in changes:
        assert trained.card.mean == (0.3,)


def test_shift_is_a_crop_of_the_padded_image_perhaps_mirrored() -> None:
    x_BCHW = torch.rand(40, 2, 5, 7)
    moved = shift(x_BCHW, 2, True, torch.Generator().manual_seed(3))
    places = set()
    for image, before in zip(moved, x_BCHW, strict=True):
        (place,) = (place for place, crop in crops(before, 2).items() if torch.equal(crop, image))
        places.add(place)
    assert len(places) > 20
    still = shift(x_BCHW, 2, False, torch.Generator().manual_seed(3))
    for image, before in zip(still, x_BCHW, strict=True):
        assert any(
            torch.equal(crop, image) for place, crop in crops(before, 2).items() if not place[2]
        )


def crops(image_CHW: Tensor, padding: int) -> dict[tuple[int, int, bool], Tensor]:
    """Every image that a shift may give, by plain slicing."""
    channels, height, width = image_CHW.shape
    padded = torch.zeros(channels, height + 2 * padding, width + 2 * padding)
    padded[:, padding : padding + height, padding : padding + width] = image_CHW
    every = {}
    for top in range(2 * padding + 1):
        for left in range(2 * padding + 1):
            crop = padded[:, top : top + height, left : left + width]
            every[top, left, False] = crop
            every[top, left, True] = crop.flip(2)
    return every


def test_channel_statistics_are_those_of_the_training_images() -> None:
    train = load_dataset("digits", "train")
    mean, std = channel_statistics(train)
    pixels = train.batch(slice(None))
    assert mean[0] == pytest.approx(pixels.mean().item(), abs=1e-4)
    assert std[0] == pytest.approx(pixels.std().item(), abs=1e-4)


def test_all_wrong_settings_are_named_at_once() -> None:
    wrong: dict[str, Any] = {
        "epochs": 0,
        "batch_size": -1,
        "lr": 0.0,
        "momentum": 1.0,
        "device": "gpu",
    }
    error = refusal("", from_mapping, TrainTeacherConfig, wrong)
    for name in wrong:
        assert f"{name}: expected" in str(error)
    error = refusal("", check_training, TrainTeacherConfig(mean=(0.5,), out="teacher.pt"))
    for flag in ("--mean", "--out"):
        assert flag in str(error)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"lr": 1e30, "augmentation": "none"},
            r"the loss became (nan|inf) in epoch \d; lower --lr",
        ),
        ({"device": "cuda:77"}, "CUDA devices"),
        ({"arch": "cnn_smal"}, "cnn_small"),
        ({"data": TrainDataConfig("digts")}, "digits"),
        ({"data": TrainDataConfig("cifar10", root="nowhere")}, r"nowhere.*--data\.download true"),
        ({"data": TrainDataConfig("digits", shape=(3, 8, 8))}, "1x8x8.*3x8x8"),
    ],
)
def test_what_cannot_work_leaves_no_file(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    refusal(message, train_teacher, tiny(tmp_path / "t.safetensors", **changes))
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_place_is_known_before_the_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--out"):
        train_teacher(
            tiny(tmp_path / "file" / "t.safetensors"), lambda metrics: pytest.fail("it trained")
        )


def test_recipes_are_whole_and_named_after_their_data() -> None:
    for path in RECIPES:
        config = from_mapping(TrainTeacherConfig, yaml.safe_load(path.read_text()), path.name)
        check_training(config)
        assert config.data.name == Path(config.out).stem == path.stem
    names = {"digits", "shapes", "letters", "mnist", "fashion_mnist", "cifar10", "cifar100", "svhn"}
    assert {path.stem for path in RECIPES} == names


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["digits", "shapes", "letters"])
def test_the_recipe_makes_the_embedded_teacher_again(tmp_path: Path, name: str) -> None:
    embedded = PROJECT / "teachers" / "checkpoints" / f"{name}.safetensors"
    again = train_teacher(recipe(name, tmp_path / "again.safetensors"))
    (old, old_card), (new, new_card) = read_weights(embedded), read_weights(again.path)
    assert old_card.recipe == new_card.recipe
    if all(torch.equal(old[key], new[key]) for key in old):
        return  # the machine it was made on, or one that rounds alike
    assert new_card.accuracy == pytest.approx(old_card.accuracy, abs=0.01)
    test = load_dataset(name, "test", shape=new_card.shape)
    config = TeacherConfig(label_mode="label")
    first, second = (
        make_teacher(config, {"checkpoint": str(path)}, torch.device("cpu"))(
            test.batch(slice(None))
        )
        for path in (embedded, again.path)
    )
    assert (first == second).float().mean() > 0.97

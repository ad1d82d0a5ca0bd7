"""Teachers saved whole by PyTorch: torch.export's .pt2 and TorchScript; and ONNX as PyTorch writes
it.
"""

import logging
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import Harm, refused
from model_folders import near
from torch import Tensor, nn

from dfme.config.settings import TeacherConfig
from dfme.oracle.ledger import Ledger
from dfme.oracle.oracle import Oracle
from dfme.owner_side import check_teacher
from dfme.spec import ImageSpec
from dfme.teachers.build import make_teacher

pytestmark = pytest.mark.integration

CPU = torch.device("cpu")
SHAPE = (3, 8, 8)
ANY_BATCH = ({0: torch.export.Dim("batch")},)


def load(kind: str, path: Path, options: dict[str, Any] | None = None, **common: Any) -> Any:
    common.setdefault("label_mode", "logits")
    file = {"model": str(path)} if kind == "onnx" else {"program": str(path), "trust": True}
    return make_teacher(TeacherConfig(kind=kind, **common), file | (options or {}), CPU)


def net(end: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten())
    module = nn.Sequential(*layers, nn.Linear(4 * 36, 5))
    module[1].running_mean.normal_()
    return module.append(end).eval() if end else module.eval()


def export(path: Path, module: nn.Module, dynamic: Any = ANY_BATCH, batch: int = 2) -> Path:
    torch.export.save(
        torch.export.export(module, (torch.rand(batch, *SHAPE),), dynamic_shapes=dynamic), path
    )
    return path


def script(path: Path, module: nn.Module) -> Path:
    with warnings.catch_warnings(action="ignore"):
        torch.jit.save(torch.jit.script(module), str(path))
    return path


def to_onnx(path: Path, module: nn.Module) -> Path:
    example = (torch.rand(2, *SHAPE),)
    torch.onnx.export(
        module, example, str(path), dynamo=True, dynamic_shapes=ANY_BATCH, verbose=False
    )
    return path


@torch.no_grad()
def answers(module: nn.Module, x_BCHW: Tensor) -> Tensor:
    return module(x_BCHW)  # type: ignore[no-any-return]


SAVERS = {"pt2": export, "torchscript": script}
ALL_SAVERS = {**SAVERS, "onnx": to_onnx}


@pytest.mark.parametrize("kind", ALL_SAVERS)
def test_a_saved_network_answers_as_it_does_in_python(tmp_path: Path, kind: str) -> None:
    module = net()
    path = ALL_SAVERS[kind](tmp_path / "net.pt2", module)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    teacher = load(kind, path, shape=SHAPE, mean=mean, std=std, max_batch=64)
    assert (teacher.spec, teacher.num_classes, teacher.info.max_batch) == (ImageSpec(SHAPE), 5, 64)
    x_BCHW = torch.rand(7, *SHAPE, requires_grad=True)
    normal_BCHW = (x_BCHW - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    answer_BK = teacher(x_BCHW)
    near(answer_BK, answers(module, normal_BCHW))
    assert not answer_BK.requires_grad
    near(teacher(x_BCHW[:1]), answer_BK[:1].detach())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(torch.equal(teacher(x_BCHW), answer_BK) for _ in range(4))
    near(load(kind, path, shape=SHAPE, label_mode=None)(x_BCHW), answers(module, x_BCHW).softmax(1))


@pytest.mark.parametrize("kind", ALL_SAVERS)
def test_probabilities_are_not_taken_for_logits(tmp_path: Path, kind: str) -> None:
    module = net(nn.Softmax(1))
    path = ALL_SAVERS[kind](tmp_path / "net.pt2", module)
    x_BCHW = torch.rand(3, *SHAPE)
    for options in ({"answers": "probabilities"}, {}):
        teacher = load(kind, path, options, shape=SHAPE, label_mode="probabilities")
        near(teacher(x_BCHW), answers(module, x_BCHW))
    words = "say --teacher.answers probabilities"
    refused(words, load, kind, path, {"answers": "logits"}, shape=SHAPE)
    refused("only probabilities", load, kind, path, shape=SHAPE)


class Ending(nn.Module):
    """The network, of one output, and a last operation."""

    def __init__(self, end: str, bias: float = 0.0) -> None:
        super().__init__()
        self.net = net(nn.Linear(5, 1))
        self.net[-1].bias.data.fill_(bias)
        self.end = end

    def forward(self, x_BCHW: Tensor) -> Tensor:
        z_B1 = self.net(x_BCHW)
        if self.end == "sigmoid":
            return z_B1.sigmoid()
        if self.end == "vector of sigmoids":
            return z_B1.sigmoid().squeeze(1)
        if self.end == "log-sigmoid":
            return nn.functional.logsigmoid(z_B1)
        if self.end == "percentage":
            return z_B1.sigmoid() * 100
        return z_B1


@pytest.mark.parametrize(
    "end", ["sigmoid", "vector of sigmoids", "log-sigmoid", "linear", "percentage"]
)
@pytest.mark.parametrize("kind", ALL_SAVERS)
def test_the_last_operation_tells_what_a_lone_output_is(
    tmp_path: Path, kind: str, end: str
) -> None:
    """Also where all answers are of one class: the bias decides it."""
    module = Ending(end, bias=20.0 if end == "linear" else 0.0).eval()
    if kind == "torchscript":
        with warnings.catch_warnings(action="ignore"):
            path = script(tmp_path / "net.ts", torch.jit.trace(module, torch.rand(2, *SHAPE)))
    else:
        path = ALL_SAVERS[kind](tmp_path / "net.pt2", module)
    x_BCHW = torch.rand(6, *SHAPE)
    z_B1 = answers(module.net, x_BCHW)
    p_BK = torch.cat([1 - z_B1.sigmoid(), z_B1.sigmoid()], 1)
    if end == "percentage":
        refused("--teacher.answers logits or percentages", load, kind, path, shape=SHAPE)
    teacher = load(
        kind,
        path,
        {"answers": "percentages"} if end == "percentage" else {},
        shape=SHAPE,
        label_mode="probabilities",
    )
    torch.testing.assert_close(teacher(x_BCHW), p_BK, rtol=1e-4, atol=1e-4)


class Both(nn.Module):
    """Features and scores."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x_BCHW: Tensor) -> tuple[Tensor, Tensor]:
        return x_BCHW.flatten(1), self.net(x_BCHW)


@pytest.mark.parametrize("kind", ALL_SAVERS)
def test_of_two_outputs_the_scores_are_named(tmp_path: Path, kind: str) -> None:
    module = Both().eval()
    path = ALL_SAVERS[kind](tmp_path / "net.pt2", module)
    asked = str(
        refused(
            "name the one with the scores: --teacher.output NAME", load, kind, path, shape=SHAPE
        )
    )
    name = asked.partition("192), ")[2].partition(" (B, 5)")[0]
    x_BCHW = torch.rand(3, *SHAPE)
    for options, classes in (({"output": name}, None), ({}, 5)):
        near(
            load(kind, path, options, shape=SHAPE, num_classes=classes)(x_BCHW),
            answers(module.net, x_BCHW),
        )


@pytest.mark.parametrize("kind", ALL_SAVERS)
def test_what_is_given_must_fit_the_program(tmp_path: Path, kind: str) -> None:
    path = ALL_SAVERS[kind](tmp_path / "net.pt2", net())
    refused("--teacher.num-classes: got 7", load, kind, path, shape=SHAPE, num_classes=7)
    words = (
        "--teacher.shape: got 3,9,9"
        if kind != "torchscript"
        else "does not take an image of shape 3,9,9"
    )
    refused(words, load, kind, path, shape=(3, 9, 9))


@pytest.mark.parametrize("kind", SAVERS)
def test_the_wrong_file_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    module = net()
    torch.save(module.state_dict(), tmp_path / "weights.pt")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a.txt", "a")
    whole = SAVERS[kind](tmp_path / "whole.pt2", module).read_bytes()
    (tmp_path / "cut.pt2").write_bytes(whole[: len(whole) // 2])
    with zipfile.ZipFile(tmp_path / "hollow.pt2", "w") as archive:
        archive.writestr("m/archive_format" if kind == "pt2" else "m/constants.pkl", "pt2")
    other = {"pt2": "torchscript", "torchscript": "pt2"}[kind]
    SAVERS[other](tmp_path / "another.pt2", module)
    capfd.readouterr()
    for name, words in {
        "weights.pt": "--teacher.checkpoint",
        "other.zip": "another kind",
        "cut.pt2": "cut short",
        "hollow.pt2": "cannot be read",
        "another.pt2": f"--teacher {other}",
        "missing.pt2": "no such file",
    }.items():
        refused(words, load, kind, tmp_path / name, shape=SHAPE)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("dynamic", "batch", "least", "most"),
    [
        (None, 4, 4, 4),
        (({0: torch.export.Dim("batch", min=3, max=5)},), 4, 3, 5),
        (ANY_BATCH, 2, 1, None),
    ],
)
def test_the_batches_that_a_program_takes(
    tmp_path: Path, dynamic: Any, batch: int, least: int, most: Any
) -> None:
    module = net()
    teacher = load("pt2", export(tmp_path / "net.pt2", module, dynamic, batch))
    assert teacher.info.max_batch == most
    oracle = Oracle(teacher, Ledger(100))
    x_BCHW = torch.rand(11, *SHAPE)  # the last part is smaller than the program takes
    near(oracle(x_BCHW), answers(module, x_BCHW))
    assert oracle.ledger.spent == 11


def test_a_program_of_any_size_must_be_told_which(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    dims = [
        torch.export.Dim(name, min=least)
        for name, least in (("batch", 1), ("height", 4), ("width", 4))
    ]
    path = export(tmp_path / "net.pt2", module, (dict(zip((0, 2, 3), dims, strict=True)),))
    refused("C,H,W = 3,?,?", load, "pt2", path)
    x_BCHW = torch.rand(2, 3, 5, 6)
    near(load("pt2", path, shape=(3, 5, 6))(x_BCHW), answers(module, x_BCHW))


class Bytes(nn.Module):
    """Takes 8-bit pixels, and sums each channel."""

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return x_BCHW.float().sum((2, 3))


def test_a_program_that_takes_bytes(tmp_path: Path) -> None:
    bytes_BCHW = torch.randint(0, 256, (2, *SHAPE), dtype=torch.uint8)
    program = torch.export.export(Bytes(), (bytes_BCHW,), dynamic_shapes=ANY_BATCH)
    torch.export.save(program, tmp_path / "net.pt2")
    teacher = load("pt2", tmp_path / "net.pt2")
    assert teacher.spec.levels == 256
    assert torch.equal(teacher(bytes_BCHW / 255), bytes_BCHW.float().sum((2, 3)))


@pytest.mark.parametrize("index", [1, 3])
def test_a_program_exported_in_training_mode_is_refused(tmp_path: Path, index: int) -> None:
    module = net()
    module[index].train()
    refused(
        "was exported in training mode; export it",
        load,
        "pt2",
        export(tmp_path / "net.pt2", module),
    )


def test_a_program_of_two_inputs(tmp_path: Path) -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x.flatten(1) + y.flatten(1)

    program = torch.export.export(Two(), (torch.rand(2, *SHAPE), torch.rand(2, *SHAPE)))
    torch.export.save(program, tmp_path / "net.pt2")
    refused("expected one input", load, "pt2", tmp_path / "net.pt2")


def test_nothing_of_a_pt2_is_loaded_without_trust(tmp_path: Path) -> None:
    path = export(tmp_path / "net.pt2", net())
    harm = pickle.dumps(Harm(tmp_path / "trace"))
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "harmful.pt2", "w") as new:
        for name in old.namelist():
            new.writestr(name, harm if name.endswith("sample_inputs/model.pt") else old.read(name))
    config = TeacherConfig(kind="pt2", label_mode="logits")
    for trust in ({}, {"trust": False}):
        options = {"program": str(tmp_path / "harmful.pt2"), **trust}
        refused("--teacher.trust", make_teacher, config, options, CPU)
        refused("--teacher.trust", check_teacher, config, options)
    assert not (tmp_path / "trace").exists()
    check_teacher(config, {"program": str(path), "trust": True})


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_torchscript_archive_that_writes_a_file_is_not_loaded_without_trust(
    tmp_path: Path,
) -> None:
    """A control stands last: where its maker is trusted, it does write."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    source = f"""
    def forward(self, x):
        mapped = torch.from_file("{precious}", True, 4, dtype=torch.uint8).fill_(33)
        return x.flatten(1)[:, :3] + mapped.sum() * 0
    """
    module = torch.jit.ScriptModule()
    module.define(source)
    torch.jit.save(module, str(tmp_path / "net.ts"))
    refused(
        "--teacher.trust", load, "torchscript", tmp_path / "net.ts", {"trust": False}, shape=SHAPE
    )
    assert precious.read_bytes() == b"mine"
    load("torchscript", tmp_path / "net.ts", {"answers": "logits"}, shape=SHAPE)
    assert precious.read_bytes() == b"!!!!"


def test_an_archive_that_unpacks_to_far_more_is_not_loaded(tmp_path: Path) -> None:
    path = script(tmp_path / "net.ts", nn.Flatten())
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("net/code/more.py", bytes(101_000_000))
    refused("is no archive", load, "torchscript", path, shape=SHAPE)


def test_torchscript_is_said_to_be_deprecated_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    path = script(tmp_path / "net.pt", net())
    recwarn.clear()
    with caplog.at_level(logging.WARNING, logger="dfme"):
        load("torchscript", path, shape=SHAPE)(torch.rand(2, *SHAPE))
    assert ["deprecated TorchScript; save net.pt" in message for message in caplog.messages] == [
        True
    ]
    assert [str(item.message) for item in recwarn] == []


def test_torchscript_needs_its_shape(tmp_path: Path) -> None:
    refused("--teacher.shape", load, "torchscript", script(tmp_path / "net.ts", net()))


def test_torchscript_in_half_precision(tmp_path: Path) -> None:
    module = net().bfloat16()
    x_BCHW = torch.rand(2, *SHAPE).bfloat16()
    teacher = load("torchscript", script(tmp_path / "net.pt", module), shape=SHAPE)
    expected = answers(module, x_BCHW).float()
    torch.testing.assert_close(teacher(x_BCHW.float()), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_frozen_torchscript_takes_images_as_its_constants_are(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    module = net().to(dtype).eval()
    traced = torch.jit.trace(module, torch.rand(2, *SHAPE).to(dtype))
    torch.jit.freeze(traced).save(str(tmp_path / "net.pt"))
    teacher = load("torchscript", tmp_path / "net.pt", shape=SHAPE)
    x_BCHW = torch.rand(2, *SHAPE)
    with torch.no_grad():
        expected = module(x_BCHW.to(dtype)).float()
    torch.testing.assert_close(teacher(x_BCHW).float(), expected, rtol=1e-2, atol=1e-2)


def test_the_cause_of_an_error_in_torchscript_is_shown(tmp_path: Path) -> None:
    error = refused(
        "does not take an image of shape 5,8,8",
        load,
        "torchscript",
        script(tmp_path / "net.pt", net()),
        shape=(5, 8, 8),
    )
    assert "The following operation failed" not in str(error)

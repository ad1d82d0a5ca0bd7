"""Methods, students and generators of one's own, by name and from Python; the student's file by
itself.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from begun import refused_run, refused_words
from command_line import parse, run
from small_runs import BATCH, Metered, clone
from tables import exhaustive
from torch import Tensor, nn

import dfme
from dfme.config.yaml_files import load_yaml, sealed
from dfme.errors import UserError
from dfme.nets.architectures import BUILDERS
from dfme.nets.generators import Generator, GeneratorNet
from dfme.run.components import build_nets
from dfme.run.student_file import load_student_of_run, save_student
from dfme.spec import ImageSpec

pytestmark = pytest.mark.full("rehearsal")

SPEC = ImageSpec((1, 8, 8))


@dataclasses.dataclass(frozen=True)
class Options:
    batch_size: int = 256
    """images a batch"""
    student_steps: int = 5
    latent_size: int = 256


class Mine(dfme.Method):
    """As static, with a dataclass of the standard library."""

    entry: ClassVar = dfme.MethodEntry(Options)
    label_modes: ClassVar = ("probabilities",)


def small(shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    return BUILDERS["cnn_small"](shape[0], num_classes)


def usual(latent_size: int, spec: ImageSpec) -> nn.Module:
    return Generator(latent_size, spec)


class Net(nn.Sequential):
    def __init__(self, num_classes: int = 10, width: int = 4) -> None:
        super().__init__(
            nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, num_classes)
        )


class Flat(nn.Linear):
    """A generator that is no GeneratorNet, and has no convolution."""

    def __init__(self, latent_size: int, shape: tuple[int, int, int]) -> None:
        super().__init__(latent_size, shape[1] * shape[2])

    def forward(self, z_BZ: Tensor) -> Tensor:
        return super().forward(z_BZ).unflatten(1, (1, 8, 8))


PLAIN = {"batch_size": BATCH, "latent_size": 16}
STATIC = {"arch": "cnn_small", "replay_steps": 4, "replay_batch": 256}
OURS: dict[str, dict[str, Any]] = {
    "a method": {"method": f"{__name__}:Mine", "student": STATIC},
    "a method's class": {"method": Mine, "student": STATIC},
    "a student": {"student": {"arch": f"{__name__}:small"}},
    "a student's function": {"student": {"arch": small}},
    "a generator": {"method_options": {**PLAIN, "generator": f"{__name__}:usual"}},
    "a generator's function": {"method_options": {**PLAIN, "generator": usual}},
}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """The student of our own parts by their own names."""
    out = tmp_path_factory.mktemp("ours") / "run"
    clone(out, Metered(), 200, student={"arch": "cnn_small"})
    return torch.load(out / "checkpoint.pt")["trainer"]["nets"]  # type: ignore[no-any-return]


TELLING = ["a method", "a student's function", "a generator's function"]


@pytest.mark.parametrize(
    "what", [*TELLING, *exhaustive(*(name for name in OURS if name not in TELLING))]
)
def test_what_is_ours_under_another_name_gives_the_same_student(
    what: str, ours: dict[str, Tensor], tmp_path: Path
) -> None:
    result = clone(
        tmp_path / "own", Metered(), 200, **{"student": {"arch": "cnn_small"}} | OURS[what]
    )
    custom = torch.load(tmp_path / "own" / "checkpoint.pt")["trainer"]["nets"]
    assert all(torch.equal(value, custom[name]) for name, value in ours.items())
    written = load_yaml(tmp_path / "own" / "config.yaml")
    method = written["method"]
    named = [method["name"], written["student"]["arch"], method.get("generator", "auto")]
    assert sum(name.startswith(f"{__name__}:") for name in named) == 1
    assert result.summary["method"] == method["name"]


OWN: dict[str, Any] = {
    "method": Mine,
    "method_options": {"batch_size": BATCH, "latent_size": 16},
    "student": {"arch": Net, "lr": 0.01, "replay_steps": 1, "replay_batch": 8, "count": 2},
}


@pytest.mark.parametrize("arch", [Net, Net(width=3)], ids=["a class", "a module"])
def test_the_student_of_ones_own_loads_again(arch: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = clone(out, Metered(), **OWN | {"student": {"arch": arch}})
    again = dfme.load_student(out, arch=arch if isinstance(arch, nn.Module) else f"{__name__}:Net")
    assert again.arch == f"{__name__}:Net"
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(again(x), result.student(x))
    if isinstance(arch, nn.Module):
        with pytest.raises(UserError, match="weights do not fit"):
            dfme.load_student(out, arch=Net)


def test_a_module_is_copied_and_trained_from_its_own_weights(tmp_path: Path) -> None:
    net = Net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    result = clone(
        tmp_path / "run",
        Metered(),
        student={"arch": net, "lr": 1e-9},
        schedule={"kind": "constant"},
    )
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    for name, value in result.student.state_dict().items():
        torch.testing.assert_close(value, before[name], atol=1e-5, rtol=0)


def test_the_whole_command_line_knows_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = (
        f"--method {__name__}:Mine --student.arch {__name__}:Net --method.batch-size 20 "
        "--method.latent-size 8 --student.replay-steps 1 --evaluation.limit 20"
    )
    for line in (
        f"{words} --budget 200 --out {out}",
        f"--resume --out {out} --budget 300",
        f"evaluate --student {out}",
        f"retrain --run {out} --out {out}-2 --student.count 2 --device cpu",
    ):
        assert run(line) == 0, line
    capsys.readouterr()
    assert run(f"--method {__name__}:Mine --help") == 0
    assert "--method.batch-size images a batch (a whole number; default: 256)" in " ".join(
        capsys.readouterr().out.split()
    )


class NoEntry(dfme.Method):
    label_modes: ClassVar = ("label",)


class NoModes(Mine):
    label_modes: ClassVar = ()


class NoSection(Mine):
    entry: ClassVar = dfme.MethodEntry(Options, sections=("estimators",))


@dataclasses.dataclass(frozen=True)
class NoBatch:
    latent_size: int = 8


class NoSize(Mine):
    entry: ClassVar = dfme.MethodEntry(NoBatch)


DIGITS = "--teacher.checkpoint teachers/checkpoints/digits.safetensors"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--method nowhere:Mine", "no module 'nowhere' in"),
        ("--method OWN:Minee", "did you mean Mine?"),
        ("--method OWN:Net", "expected a class derived from dfme.Method"),
        ("--method OWN:NoEntry", "expected entry = dfme.MethodEntry(Config)"),
        ("--method OWN:NoModes", "expected label_modes among logits"),
        ("--method OWN:NoSection", "sections among estimator, queries"),
        ("--method OWN:NoSize", "expected options with defaults in NoBatch"),
        ("--method OWN:Mine --method.batch-size x", "--method.batch-size: expected a whole number"),
        ("--method OWN:Mine --method.batch 1", "did you mean --method.batch-size?"),
        ("--method OWN:Mine --estimator.step 1", "--estimator.step: unknown flag of method"),
        ("--student.arch nowhere:Net", "--student.arch: no module 'nowhere'"),
        ("--method.generator OWN:Flatt", "did you mean Flat?"),
        ("--method.generator flat", "expected module:Class or module:function, got 'flat'"),
        (
            "--method.generator OWN:Flat --queries.base procedural",
            "--queries.base: expected none with method",
        ),
        (f"{DIGITS} --teacher.arch OWN:Net", "unknown net"),
    ],
)
def test_what_cannot_be_found_is_one_line(words: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(words.replace("OWN", __name__))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def fails(shape: object, num_classes: int) -> nn.Module:
    raise ValueError("too deep")


class Late(Net):
    def forward(self, x_BCHW: Tensor) -> Tensor:
        raise RuntimeError("no forward")


NETS: dict[str, tuple[dict[str, Any], str]] = {
    "not a module": (
        {"student": lambda shape: 3},
        "expected a torch module, got an object of type int",
    ),
    "nothing taken": (
        {"student": lambda: Net()},
        "expected a parameter named shape or num_classes",
    ),
    "fails": ({"student": fails}, r"ValueError: too deep \(test_own"),
    "fails later": ({"student": Late()}, r"RuntimeError: no forward \(test_own_parts.py"),
    "other classes": (
        {"student": Net(7)},
        r"Net: expected floats \(2, 10\) for \(2, 1, 8, 8\), got \(2, 7\)",
    ),
    "no parameters": (
        {"student": nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(10))},
        "to train, got",
    ),
    "two of a module": ({"student": Net(), "method": "disguide"}, "one student, but this needs 2"),
    "rounds": (
        {"student": {"arch": Net(), "steps": 9, "rounds": (1.0,)}},
        r'needs student=\{"rounds"',
    ),
    "images": (
        {"method_options": {"generator": nn.Linear(256, 9)}},
        r"floats \(2, 1, 8, 8\) for \(2, 256\)",
    ),
    "range": (
        {
            "method": "dfme",
            "method_options": {"generator": Flat},
            "estimator": {"direction": "range"},
        },
        r'expected a Conv2d in it, for estimator=\{"direction": "range"\}',
    ),
    "no class": (
        {"method": small},
        "expected a class derived from dfme.Method, got <function small",
    ),
    "labels": (
        {"method": Mine, "label_mode": "label"},
        "Mine.* needs a teacher that answers probabilities",
    ),
}


@pytest.mark.parametrize("what", NETS)
def test_a_network_that_does_not_fit_is_refused_before_the_first_query(
    what: str, tmp_path: Path
) -> None:
    settings, message = NETS[what]
    refused_run(tmp_path / "run", message, **{"method_options": {}, **settings})


def test_the_seed_makes_the_weights_of_each_of_several() -> None:
    words = f"--student.arch {__name__}:Net --student.count 2 --method.generator {__name__}:Flat"
    built = [build_nets(parse(words), SPEC, 10, torch.device("cpu")) for _ in range(2)]
    one, other = (list(each.parameters()) for each in built[0].students)
    assert not torch.equal(one[0], other[0])
    assert all(
        torch.equal(a, b) for a, b in zip(one, built[1].students[0].parameters(), strict=True)
    )
    assert isinstance(built[0].generator, GeneratorNet)


# The student's file


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "shutil:rmtree",
        "builtins:exec",
        "nowhere:Net",
        "a:b:c",
        ":",
        f"{__name__}:boom",
    ],
)
def test_nothing_is_called_that_makes_no_network(name: str, tmp_path: Path) -> None:
    save_student(tmp_path / "student.safetensors", Net(), name, SPEC, 10)
    with pytest.raises(UserError, match="its network is "):
        dfme.load_student(tmp_path, arch=name)


def test_a_file_alone_imports_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "imported_by_nobody"
    Path(f"{name}.py").write_text("raise SystemExit('imported')\n")
    weights = tmp_path / "student.safetensors"
    save_student(weights, Net(), f"{name}:Net", SPEC, 10)
    message = (
        rf"its network is {name}:Net, and no file alone .*: in Python, say dfme.load_student\(path, "
        r"arch=Net\)"
    )
    with pytest.raises(UserError, match=message):
        dfme.load_student(weights)
    assert "no file alone has a module imported" in refused_words(
        ["export", "--student", str(weights), "--format", "pt2"], capsys
    )
    assert name not in sys.modules
    with torch.no_grad():
        scores = dfme.load_student(weights, arch=Net)(torch.rand(2, 1, 8, 8))
    assert scores.shape == (2, 10)
    (tmp_path / "config.yaml").write_text(
        sealed(f"student: {{arch: '{__name__}:Net'}}\n")
    )  # a run's own says it
    assert load_student_of_run(weights).arch == f"{name}:Net"


def boom(*arguments: object, **options: object) -> None:
    raise SystemExit("called")

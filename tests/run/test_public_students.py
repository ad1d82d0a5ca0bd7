"""Runs whose student starts from weights that anybody can download: record, resume, files, checks."""

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from begun import refused_words
from command_line import parse_extract, run
from processes import summary
from refusals import refusal
from safetensors.torch import save_file

import dfme
from dfme.config.settings import Job
from dfme.config.yaml_files import load_yaml
from dfme.nets.public import PublicNet
from dfme.nets.sources import digest_of, find_source
from dfme.run.job import LATER, config_hash, decisive, differing_keys, document

WEIGHTS = Path(__file__).resolve().parents[2] / "teachers" / "checkpoints" / "digits.safetensors"
BEGIN = (
    "--teacher.checkpoint t.safetensors --evaluation.dataset none --method.name static "
    "--method.batch-size 20 --method.latent-size 16 --student.arch timm:test_resnet "
    "--student.weights w.safetensors --student.train all --budget 40 --out run "
    "--student.passes 0 --student.rounds= --student.replay-steps 0"
)


def test_settings_of_older_versions_have_their_hash_and_can_be_resumed(tmp_path: Path) -> None:
    job = parse_extract(["--budget", "100"])
    now = document(job)
    before = document(job)
    for name in ("weights", "train", "logit_adjustment"):
        del before["student"][name]
    assert decisive(before) == decisive(now)
    assert not {*LATER} & decisive(now).keys()
    assert differing_keys(before, job) == []
    file = tmp_path / "w.pt"
    file.write_bytes(b"")
    changed = parse_extract(["--budget", "100", "--student.weights", str(file)])
    assert differing_keys(before, changed) == ["student.arch", "student.weights"]
    assert config_hash(changed) != config_hash(job)


def test_runs_of_drawn_images_from_before_pools_can_be_resumed() -> None:
    words = ["--method.name", "procedural", "--budget", "100"]
    now = document(parse_extract(words))
    before = document(parse_extract(words))
    for name in ("pool", "root", "download"):
        del before["method"][name]
    assert decisive(before) == decisive(now)
    asked = parse_extract([*words, "--method.pool", "digits"])
    assert differing_keys(before, asked) == ["method.pool"]
    knockoff = document(parse_extract(["--method.name", "knockoff", "--budget", "100"]))
    assert "method.pool" in decisive(knockoff), "which had it before"


def test_what_does_not_go_together_is_said_before_torch_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "w.pt"
    file.write_bytes(b"")
    public = f"--student.weights {file} --student.arch resnet18"
    generated = "--method.name dfme --method.latent-size 16"
    for words, expected in (
        ("--student.train head --method.name procedural", "takes effect only with --student.wei"),
        (f"{public} --student.train solve {generated}", "expected all, or auto, with method dfme"),
        (
            f"{public} --student.train solve --student.logit-adjustment 1 --method.name procedural",
            "student.logit-adjustment: takes effect only with --student.train auto,head,tail,all",
        ),
        (f"{public} --student.train tail --student.count 2 --method.name knockoff", "one student"),
        (f"--student.weights {tmp_path / 'no.pt'} --method.name procedural", "no such file"),
        (f"{public} --student.arch lenet5 --method.name procedural", "timm:NAME or one of torch"),
    ):
        refusal(expected, parse_extract, [*words.split(), "--budget", "100"])
    parse_extract([*f"{public} {generated} --student.train all --budget 100".split()])


def test_a_recipes_small_net_gives_way_to_public_weights(tmp_path: Path) -> None:
    file = tmp_path / "w.pt"
    file.write_bytes(b"")
    default = parse_extract([])  # the recipe names cnn_small
    assert default.config.student.arch == "cnn_small"
    assert parse_extract(["--student.weights", str(file)]).config.student.arch == "auto"


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    timm = pytest.importorskip("timm")
    place = tmp_path_factory.mktemp("public")
    torch.manual_seed(0)
    save_file(timm.create_model("test_resnet", False).state_dict(), place / "w.safetensors")
    shutil.copy(WEIGHTS, place / "t.safetensors")
    with contextlib.chdir(place):
        assert run(BEGIN) == 0
    return place


@pytest.fixture
def home(begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = Path(shutil.copytree(begun, tmp_path / "home"))
    monkeypatch.chdir(place)
    return place


def facts(home: Path) -> dict[str, Any]:
    held: dict[str, Any] = summary(home / "run")["student_weights"]
    return held


@pytest.mark.integration
def test_the_record_names_the_weights(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digest = digest_of(find_source("w.safetensors", "timm:test_resnet"))
    expected = {"name": "w.safetensors", "digest": digest, "arch": "timm:test_resnet"}
    held = facts(home)
    assert {name: held[name] for name in expected} == expected
    assert held["size"] == [128, 128]
    assert json.loads((home / "run" / "data.json").read_text())["student.weights"] == digest
    page = (home / "run" / "report.html").read_text(encoding="utf-8")
    assert f"with weights that anybody can download: w.safetensors (sha256 {digest[:12]})" in page
    assert run(BEGIN.replace("--out run", "--out other")) == 0
    assert "with weights that anybody can download: w.safetensors" in " ".join(
        capsys.readouterr().err.split()
    )
    assert (
        load_yaml(home / "run" / "config.yaml", own=True)["student"]["weights"] == "w.safetensors"
    )


@pytest.mark.integration
def test_a_resumed_run_is_held_to_its_weights(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(home / "run", home / "second")
    (home / "away").mkdir()
    monkeypatch.chdir(home / "away")
    assert run("--resume --budget 60 --out ../run") == 0  # the path begins where the run began
    shutil.move(home / "w.safetensors", "moved.safetensors")
    moved = "--student.weights moved.safetensors"
    assert run(f"--resume --budget 80 --out ../run {moved}") == 0
    assert summary(home / "run")["spent"] == 80
    import timm

    torch.manual_seed(1)
    save_file(timm.create_model("test_resnet", False).state_dict(), "w2.safetensors")
    words = refused_words(
        "--resume --budget 60 --out ../second --student.weights w2.safetensors", capsys
    )
    assert "student.weights: weights of sha256" in words


@pytest.mark.integration
def test_the_students_file_needs_no_weights_file(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "w.safetensors").unlink()
    student = dfme.load_student(home / "run")
    assert isinstance(student, PublicNet)
    assert student(torch.rand(2, 1, 8, 8)).shape == (2, 10)
    assert run("evaluate --student run --evaluation.dataset digits --evaluation.limit 20") == 0
    assert run("export --student run --format pt2 --out s.pt2") == 0
    program = torch.export.load("s.pt2").module()
    x_BCHW = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(program(x_BCHW), student(x_BCHW), rtol=1e-4, atol=1e-5)


@pytest.mark.integration
def test_other_weights_are_retrained_without_their_architecture_and_by_the_answers_paid(
    home: Path,
) -> None:
    import timm

    folder = home / "vit"
    folder.mkdir()
    (folder / "config.json").write_text('{"architecture": "test_vit"}')
    save_file(timm.create_model("test_vit", False).state_dict(), folder / "model.safetensors")
    begin = BEGIN.replace("--student.replay-steps 0", "--student.replay-steps 1")
    assert run(begin.replace("--out run", "--out kept")) == 0
    assert run("retrain --run kept --student.weights vit --student.train head --out again") == 0
    retrained = summary(home / "again")
    assert retrained["student_arch"] == "timm:test_vit"
    assert retrained["student_steps"] == 3  # 40 images in batches of 32, and the last layer


@pytest.mark.integration
def test_students_of_later_rounds_begin_from_the_public_weights_again(home: Path) -> None:
    from dfme.run.components import build_nets
    from dfme.spec import ImageSpec

    words = BEGIN.replace("--out run", "--out new")
    job: Job = parse_extract(words.split())
    nets = build_nets(job, ImageSpec((1, 8, 8)), 10, torch.device("cpu"))
    (begun,) = nets.students
    (first,) = nets.fresh(1)
    (second,) = nets.fresh(2)
    for name, value in begun.state_dict().items():
        same = torch.equal(first.state_dict()[name], second.state_dict()[name])
        assert same is not name.startswith("head.weight") or name.startswith("head.bias")
        if name.startswith("backbone."):
            assert torch.equal(value, first.state_dict()[name])


@pytest.mark.integration
def test_from_python_by_a_name_and_by_options(home: Path) -> None:
    def teacher(x_BCHW: torch.Tensor) -> torch.Tensor:
        return x_BCHW.flatten(1)[:, :3].softmax(1)

    options: dict[str, Any] = {"shape": (1, 8, 8), "num_classes": 3, "budget": 40}
    options |= {"method": "static", "method_options": {"batch_size": 20, "latent_size": 16}}
    student = {"arch": "timm:test_resnet", "weights": "w.safetensors", "train": "all", "steps": 2}
    result = dfme.extract(teacher, student=student, out="by_options", **options)
    assert result.summary["student_weights"]["name"] == "w.safetensors"
    plain = dfme.extract(teacher, student="cnn_small", out="by_name", **options)
    assert plain.summary["student_arch"] == "cnn_small"
    with pytest.raises(dfme.UserError, match=r"student=.*no such file"):
        dfme.extract(teacher, student={"weights": "none.pt"}, out="none", **options)

"""What cannot be watched so is said in one line, before anything heavy is loaded and before the first query."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from defended import WEIGHTS, queries
from toys import LinearTeacher
from watching import watched

from dfme.cli.main import main
from dfme.config.settings import TeacherConfig
from dfme.config.values import from_mapping
from dfme.errors import Refused, UserError
from dfme.spec import ImageSpec, RequestPolicy
from dfme.teachers import check_teacher
from dfme.teachers.build import make_teacher
from dfme.teachers.defences.wrapper import Defended

D = "--teacher.benign digits "
REFUSED = {
    "pairs": r"--teacher\.benign: expected held-out labelled images to calibrate pairs on, such as digits or FOLDER",
    "pairs --teacher.benign digist": r"--teacher\.benign: data set: .* did you mean digits\? .*",
    "pairs --teacher.benign no/where": r"--teacher\.benign: data set no/where: no such folder or file .*",
    "pairs --teacher.kind v2": (
        r"--teacher\.watch: a service is watched where it runs: run\.py serve --watch pairs; leave it out here"
    ),
    f"pairs,sprt,sequential --teacher.kind pt2 {D}": (
        r"--teacher\.watch: sprt, sequential: look into the network of a teacher of kind torch, got pt2"
    ),
    f"labels --teacher.on-alarm label --teacher.label-mode logits {D}": (
        r"--teacher\.on-alarm label: expected --teacher\.label-mode probabilities, top_k or label, got logits"
    ),
    "mahalanobis --teacher.kind onnx --teacher.benign digist": r"--teacher\.watch: .* got onnx; --teacher\.benign: .*",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_the_configuration_shows_is_refused_by_name(words: str) -> None:
    watch, *flags = words.split()
    pairs = zip(flags[::2], flags[1::2], strict=True)
    keys = {flag.removeprefix("--teacher.").replace("-", "_"): text for flag, text in pairs}
    config = from_mapping(TeacherConfig, {"watch": watch, **keys})
    with pytest.raises(UserError, match=f"^{REFUSED[words]}$"):
        check_teacher(config, {"trust": True})


@pytest.mark.parametrize("command", ["extract --budget 1k --out {out}", "serve --port 0", "check"])
def test_every_command_says_it_in_one_line(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*command.format(out=tmp_path / "run").split(), "--teacher.watch", "pairs"]
    assert main([*words, "--teacher.checkpoint", WEIGHTS]) == 2
    assert re.fullmatch(r"dfme: --teacher\.benign: expected held-out .*\n", capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", ["--teacher.benign digits", "--teacher.on-alarm refuse"])
def test_what_would_have_no_effect_is_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extract", *words.split(), "--teacher.checkpoint", WEIGHTS]) == 2
    assert f"dfme: {words.split()[0]}: expected --teacher.watch with it" in capsys.readouterr().err


def test_what_only_the_data_show_is_said_as_the_teacher_is_made(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), np.uint8)
    parts = {
        f"{part}_{name}": each
        for part in ("train", "test")
        for name, each in (("images", images), ("labels", np.arange(60) % 5))
    }
    np.savez(tmp_path / "five.npz", **parts)
    np.savez(tmp_path / "few.npz", images=images[:20])
    with pytest.raises(
        UserError, match=r"--teacher\.watch: sequential with benign .*five\.npz: expected images of all 10"
    ):
        watched("sequential", benign=str(tmp_path / "five.npz"))
    with pytest.raises(UserError, match=r"--teacher\.benign: expected at least 20 images to calibrate on, got 10"):
        watched("labels", benign=str(tmp_path / "few.npz"))


def own(config: dict[str, object], **options: object) -> object:
    given = from_mapping(TeacherConfig, {"kind": "toys:LinearTeacher", "benign": "digits", **config})
    return make_teacher(given, {"spec": ImageSpec((1, 8, 8)), "num_classes": 10, **options}, torch.device("cpu"))


def test_a_teacher_of_ones_own_is_watched_and_answers_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    for mode in ("logits", "probabilities"):
        teacher = own({"watch": "pairs,labels"}, mode=mode)
        assert isinstance(teacher, Defended)
        assert teacher.watch is not None
        plain = LinearTeacher(ImageSpec((1, 8, 8)), num_classes=10, mode=mode)
        assert str(teacher.label_mode) == str(plain.label_mode) == mode
        assert torch.equal(teacher(queries()[:90]), plain(queries()[:90]))
        assert teacher.watch.report()["images"] == 90
    with pytest.raises(UserError, match="on-alarm label: expected"):
        own({"watch": "labels", "on_alarm": "label"}, mode="logits")
    with pytest.raises(
        UserError, match=r"--teacher\.watch: the watch: expected a teacher with unrounded scores, got label"
    ):
        own({"watch": "labels"}, mode="label")
    monkeypatch.setattr(LinearTeacher, "wire", RequestPolicy(), raising=False)
    with pytest.raises(UserError, match=r"--teacher\.watch: a service is watched where it runs"):
        own({"watch": "labels"})


def test_a_quota_is_refused_before_the_watch_sees_it() -> None:
    teacher = watched("labels", defences="quota:images=50")
    teacher(queries()[:50])
    with pytest.raises(Refused, match="quota"):
        teacher(queries()[:1])
    assert teacher.watch is not None
    assert teacher.watch.report()["images"] == 50

"""What cannot be defended so is said in one line, before anything heavy is loaded and before the first query."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from defended import KEY, WEIGHTS, digits
from toys import LinearTeacher

from dfme.cli.main import main
from dfme.config.defence_texts import parse_defences
from dfme.config.defences import stated
from dfme.config.settings import TeacherConfig
from dfme.config.values import from_mapping
from dfme.errors import UserError
from dfme.spec import ImageSpec, LabelMode, RequestPolicy
from dfme.teachers import check_teacher
from dfme.teachers.build import make_teacher
from dfme.teachers.defences.wrapper import Defended

SPEC = ImageSpec((1, 4, 4))
REFUSED = {
    "lattice --teacher.kind v2": (
        r"a service is defended where it runs: run\.py serve --teacher\.defences lattice:n=10; leave it out here"
    ),
    "modelguard_w --teacher.label-mode probabilities:4": (
        r"modelguard_w: --teacher\.label-mode probabilities:4 undoes the margin 0\.0001 that keeps the top class; "
        r"expected more decimals, or a margin above 0\.0001"
    ),
    "grad2:keep_top=true:margin=.01+lattice --teacher.label-mode top_k:3:2": r"grad2: .*undoes the margin 0\.01 .*",
    "mad --teacher.label-mode logits": r"expected --teacher\.label-mode probabilities, top_k or label .*, got logits.*",
    "quota:images=9+pow+quota": r"quota: expected once, got 2",
    "noise": r"noise: expected key_env=NAME, the environment variable that holds its key",
    "watermark:key_env=NOT_THERE": (
        r"watermark: the environment variable NOT_THERE should hold a key, but is not set: export NOT_THERE=\.\.\."
    ),
    "misinform:wrong=net+noise": r"misinform: expected key_env=NAME.*; noise: expected key_env=NAME.*",
    "misinform:wrong=roll:gate=mahalanobis": r"misinform: expected data with gate=mahalanobis, .*; got none",
    "misinform:wrong=roll:data=digits": r"misinform: expected data .*, and with no other gate; got digits",
    "misinform:wrong=roll:gate=mahalanobis:data=digist": r"misinform: data set: .* did you mean digits\? .*",
    "misinform:wrong=roll:gate=mahalanobis:data=digits --teacher.kind pt2": (
        r"misinform: gate=mahalanobis looks into the network of a teacher of kind torch, got pt2"
    ),
    "grad2:keep_top=true+modelguard_w+noise --teacher.label-mode probabilities:2": (
        r"grad2: .*undoes.*; modelguard_w: .*undoes.*; noise: expected key_env.*"
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_the_configuration_shows_is_refused_by_name(words: str) -> None:
    defences, *flags = words.split()
    keys = {
        flag.removeprefix("--teacher.").replace("-", "_"): text
        for flag, text in zip(flags[::2], flags[1::2], strict=True)
    }
    config = from_mapping(TeacherConfig, {"defences": defences, **keys})
    with pytest.raises(UserError, match=f"^--teacher.defences: {REFUSED[words]}$"):
        check_teacher(config, {"trust": True})


def test_more_decimals_than_the_margin_has_are_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K", KEY)
    for mode in ("probabilities:5", "label", "top_k:3", None):
        config = from_mapping(TeacherConfig, {"defences": "modelguard_w+noise:key_env=K", "label_mode": mode})
        assert check_teacher(config, {}) == ""


@pytest.mark.parametrize("command", ["extract --budget 1k --out {out}", "serve --port 0", "check"])
def test_every_command_says_it_in_one_line(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*command.format(out=tmp_path / "run").split(), "--teacher.defences", "noise:key_env=NO_SUCH_KEY"]
    assert main([*words, "--teacher.checkpoint", WEIGHTS]) == 2
    shown = capsys.readouterr()
    assert re.fullmatch(r".*--teacher\.defences: noise: the environment variable NO_SUCH_KEY .*\n", shown.err)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("mode", ["label", "top_k:2", "probabilities:3"])
def test_a_teacher_whose_own_answers_hide_what_a_defence_needs(mode: str) -> None:
    asked = LinearTeacher(SPEC, mode=mode)
    asked.label_mode = LabelMode.parse(mode)
    with pytest.raises(UserError, match=f"lattice, pow: expected a teacher with unrounded scores, got {mode}"):
        Defended(asked, parse_defences("quota+lattice+pow"), asked.label_mode)
    images = torch.rand(5, 1, 4, 4)
    if mode != "probabilities:3":  # the toy does not round
        assert torch.equal(
            Defended(asked, parse_defences("quota"), asked.label_mode)(images).nan_to_num(), asked(images).nan_to_num()
        )


def test_a_teacher_of_ones_own_is_defended_unless_it_is_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    config = from_mapping(TeacherConfig, {"kind": "toys:LinearTeacher", "defences": "lattice", "label_mode": "top_k:2"})
    teacher = make_teacher(config, {"spec": SPEC, "mode": "logits"}, torch.device("cpu"))
    assert isinstance(teacher, Defended)
    images = torch.rand(50, 1, 4, 4)
    p = LinearTeacher(SPEC, mode="logits").logits(images).softmax(1)
    revealed = teacher(images)
    assert revealed.isnan().sum() == 50
    assert ((revealed.nan_to_num() * 10 - (revealed.nan_to_num() * 10).round()).abs() < 1e-5).all()
    assert (revealed.nan_to_num().argmax(1) == p.argmax(1)).all()
    monkeypatch.setattr(LinearTeacher, "wire", RequestPolicy(), raising=False)
    with pytest.raises(UserError, match="a service is defended where it runs"):
        make_teacher(config, {"spec": SPEC}, torch.device("cpu"))


def test_data_of_a_gate_must_have_the_teachers_classes() -> None:
    config = from_mapping(TeacherConfig, {"defences": "misinform:wrong=roll:gate=mahalanobis:data=letters"})
    with pytest.raises(
        UserError, match=r"misinform: gate=mahalanobis with data letters: expected images of all 10 classes"
    ):
        make_teacher(config, {"checkpoint": WEIGHTS}, torch.device("cpu"))
    assert digits().label_mode == LabelMode("probabilities")


def test_what_a_teacher_must_not_answer_is_still_noticed() -> None:
    asked = LinearTeacher(SPEC, mode="probabilities")
    asked.weight = asked.weight * torch.nan
    for mode in ("probabilities", "label"):
        with pytest.raises(Exception, match="teacher: expected probabilities"):
            Defended(asked, parse_defences("lattice"), LabelMode(mode))(torch.rand(2, 1, 4, 4))  # type: ignore[arg-type]


def test_what_a_stack_states_is_what_its_parts_state_together() -> None:
    def of(text: str) -> tuple[object, ...]:
        return dataclasses.astuple(stated(parse_defences(text), 10))

    assert of("none") == ("yes", 0.0, False, False, ())
    assert of("reverse_sigmoid") == ("p_top>=1/2", None, False, False, ())
    assert of("modelguard_w:epsilon=0.4+reverse_sigmoid")[0] == "no", "after W the top may lie below one half"
    assert of("modelguard_w:epsilon=0.4+modelguard_s:epsilon=0.5") == ("yes", 0.9, True, False, ())
    assert of("mad+grad2:keep_top=true")[1] == 2.0, "no two rows are further apart"
    assert of("noise:key_env=K+mad:q=net") == ("no", None, True, True, ("key", "surrogate"))
    gate = "misinform:gate=mahalanobis:data=digits:wrong=net:key_env=K"
    assert of(gate) == ("no", None, False, False, ("key", "surrogate", "network", "data"))

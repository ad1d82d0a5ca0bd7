"""What cannot be defended or watched so is said in one line, before anything heavy is loaded."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from defended import KEY, WEIGHTS, queries, watched
from refusals import refusal
from toys import LinearTeacher

from dfme.cli.main import main
from dfme.config.defences import parse_defences, stated
from dfme.config.settings import TeacherConfig
from dfme.config.values import from_mapping
from dfme.errors import Refused
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.build import make_teacher
from dfme.teachers.owner.checks import check_teacher
from dfme.teachers.owner.defences.wrapper import Defended

BENIGN = "--teacher.benign digits"
DEFENCES = {
    "lattice --teacher.kind v2": "a service is defended where it runs: run.py serve",
    "modelguard_w --teacher.label-mode probabilities:4": "modelguard_w: --teacher.label-mode probabilities:4",
    "grad2:keep_top=true:margin=.01+lattice --teacher.label-mode top_k:3:2": "grad2: --teacher.label-mode",
    "mad --teacher.label-mode logits": "expected --teacher.label-mode probabilities, top_k or label",
    "quota:images=9+pow+quota": "quota: expected once, got 2",
    "misinform:wrong=net+noise": "misinform: expected key_env=NAME, noise: expected key_env=NAME",
    "watermark:key_env=NOT_THERE": "watermark: the environment variable NOT_THERE should hold a key",
    "misinform:wrong=roll:gate=mahalanobis": "misinform: expected data with gate=mahalanobis",
    "misinform:wrong=roll:data=digits": "and with no other gate; got digits",
    "misinform:wrong=roll:gate=mahalanobis:data=digist": "misinform: data set, did you mean digits?",
    "misinform:wrong=roll:gate=mahalanobis:data=digits --teacher.kind pt2": "gate=mahalanobis, got pt2",
}
WATCHES = {
    "pairs": "--teacher.benign: expected held-out labelled images to calibrate pairs on",
    "pairs --teacher.benign digist": "--teacher.benign: data set, did you mean digits?",
    "pairs --teacher.benign no/where": "--teacher.benign: data set no/where: no such folder or file",
    "pairs --teacher.kind v2": "--teacher.watch: a service is watched where it runs",
    f"pairs,sprt,sequential --teacher.kind pt2 {BENIGN}": "--teacher.watch: sprt, sequential: , got pt2",
    f"labels --teacher.on-alarm label --teacher.label-mode logits {BENIGN}": "on-alarm label: , other than",
    "mahalanobis --teacher.kind onnx --teacher.benign digist": ", got onnx; --teacher.benign: ",
}
REFUSED = [
    *(("defences", words, f"--teacher.defences: , {said}") for words, said in DEFENCES.items()),
    *(("watch", words, said) for words, said in WATCHES.items()),
]
"""Option, words, and parts of the one line that refuses them."""


@pytest.mark.parametrize(("option", "words", "said"), REFUSED)
def test_what_the_configuration_shows_is_refused_by_name(
    option: str, words: str, said: str
) -> None:
    value, *flags = words.split()
    pairs = zip(flags[::2], flags[1::2], strict=True)
    keys = {flag.removeprefix("--teacher.").replace("-", "_"): text for flag, text in pairs}
    config = from_mapping(TeacherConfig, {option: value, **keys})
    parts = [re.escape(part) for part in said.split(", ")]
    refusal(f"^.*{'.*'.join(parts)}.*$", check_teacher, config, {"trust": True})


def test_more_decimals_than_the_margin_has_are_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K", KEY)
    for mode in ("probabilities:5", "label", "top_k:3", None):
        config = from_mapping(
            TeacherConfig, {"defences": "modelguard_w+noise:key_env=K", "label_mode": mode}
        )
        assert check_teacher(config, {}) == ""


LINES = {
    "--teacher.defences noise:key_env=NO_KEY": "--teacher.defences: noise: the environment variable",
    "--teacher.watch pairs": "--teacher.benign: expected held-out",
    BENIGN: "--teacher.benign: expected --teacher.watch with it",
}
COMMANDS = (
    "extract --budget 1k --out {out}",
    "check",
    "serve --port 0",
)  # serve has a --benign of its own


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (each, words)
        for each in COMMANDS
        for words in LINES
        if each != COMMANDS[2] or words != BENIGN
    ],
)
def test_every_command_says_it_in_one_line(
    command: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f"{command.format(out=tmp_path / 'run')} --teacher.checkpoint {WEIGHTS} {words}"
    assert main(line.split()) == 2
    assert re.fullmatch(f"dfme: {re.escape(LINES[words])}.*\n", capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def test_what_only_the_data_show_is_said_as_the_teacher_is_made(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), np.uint8)
    five = {f"{part}_labels": np.arange(60) % 5 for part in ("train", "test")}
    np.savez(tmp_path / "five.npz", train_images=images, test_images=images, **five)
    np.savez(tmp_path / "few.npz", images=images[:20])
    refusal(
        r"sequential with benign .*five\.npz: expected images of all 10",
        watched,
        "sequential",
        benign=str(tmp_path / "five.npz"),
    )
    refusal(
        "benign: expected at least 20 images to calibrate on, got 10",
        watched,
        "labels",
        benign=str(tmp_path / "few.npz"),
    )


@pytest.mark.parametrize("mode", ["label", "top_k:2", "probabilities:3"])
def test_a_teacher_whose_own_answers_hide_what_a_defence_needs(mode: str) -> None:
    asked = LinearTeacher(ImageSpec((1, 4, 4)), mode=mode)
    asked.label_mode = LabelMode.parse(mode)
    refusal(
        f"lattice, pow: expected .* unrounded scores, got {mode}",
        Defended,
        asked,
        parse_defences("quota+lattice+pow"),
        asked.label_mode,
    )
    images = torch.rand(5, 1, 4, 4)
    if mode != "probabilities:3":  # the toy does not round
        answers = Defended(asked, parse_defences("quota"), asked.label_mode)(images)
        assert torch.equal(answers.nan_to_num(), asked(images).nan_to_num())


def own(
    teacher: str = "toys:LinearTeacher", mode: str = "probabilities", **config: object
) -> Defended:
    given = from_mapping(TeacherConfig, {"kind": teacher, **config})
    options = {"spec": ImageSpec((1, 8, 8)), "num_classes": 10, "mode": mode}
    teacher_made = make_teacher(
        given, options if teacher.startswith("toys") else {}, torch.device("cpu")
    )
    assert isinstance(teacher_made, Defended)
    return teacher_made


def test_a_teacher_of_ones_own_is_defended_and_watched_unless_it_is_a_service() -> None:
    answers = own(mode="logits", defences="lattice", label_mode="top_k:2")(queries()[:50])
    expected = LinearTeacher(ImageSpec((1, 8, 8)), 10).logits(queries()[:50]).argmax(1)
    assert answers.isnan().sum() == 50 * 8
    assert ((answers * 10 - (answers * 10).round()).abs().nan_to_num() < 1e-5).all()
    assert (answers.nan_to_num().argmax(1) == expected).all()
    for mode in ("logits", "probabilities"):
        teacher = own(mode=mode, watch="pairs,labels", benign="digits")
        plain = LinearTeacher(ImageSpec((1, 8, 8)), num_classes=10, mode=mode)
        assert str(teacher.label_mode) == mode
        assert torch.equal(teacher(queries()[:90]), plain(queries()[:90]))
        assert teacher.info.watch.report()["images"] == 90
    watch = {"watch": "labels", "benign": "digits"}
    refusal("on-alarm label: expected", own, mode="logits", on_alarm="label", **watch)
    refusal(
        "the watch: expected a teacher with unrounded scores, got label", own, mode="label", **watch
    )
    for options, verb in (({"defences": "lattice"}, "defended"), (watch, "watched")):
        refusal(
            f"a service is {verb} where it runs", own, "known_teachers:ScriptedTeacher", **options
        )


def test_a_quota_is_refused_before_the_watch_sees_it() -> None:
    teacher = watched("labels", defences="quota:images=50")
    teacher(queries()[:50])
    refusal("quota", teacher, queries()[:1], error=Refused)
    assert teacher.info.watch.report()["images"] == 50


def test_what_a_stack_states_is_what_its_parts_state_together() -> None:
    def of(text: str) -> tuple[object, ...]:
        return dataclasses.astuple(stated(parse_defences(text), 10))

    assert of("none") == ("yes", 0.0, False, False, ())
    assert of("reverse_sigmoid") == ("p_top>=1/2", None, False, False, ())
    assert of("modelguard_w:epsilon=0.4+reverse_sigmoid")[0] == "no", (
        "after W the top may lie below one half"
    )
    assert of("modelguard_w:epsilon=0.4+modelguard_s:epsilon=0.5") == ("yes", 0.9, True, False, ())
    assert of("mad+grad2:keep_top=true")[1] == 2.0, "no two rows are further apart"
    assert of("noise:key_env=K+mad:q=net") == ("no", None, True, True, ("key", "surrogate"))
    assert of("misinform:gate=mahalanobis:data=digits:wrong=net:key_env=K") == (
        "no",
        None,
        False,
        False,
        ("key", "surrogate", "network", "data"),
    )


ROOT = Path(__file__).resolve().parents[2]
ALWAYS = {"build", "facts", "label_modes", "options", "owner", "owner.checks"}
"""Modules of every teacher, and of the record that a run keeps of it."""

CODE = """
import json, sys
import torch
from dfme.config.settings import TeacherConfig
from dfme.teachers.build import make_teacher
from dfme.teachers.facts import teacher_facts
config = TeacherConfig(kind={kind!r}, shape=(1, 8, 8), num_classes=10)
options = {options!r}
own = (lambda x: x.flatten(1)[:, :10]) if ":" in config.kind else None
teacher_facts(make_teacher(config, options, torch.device("cpu"), own=own), config.kind, options)
names = [name for name in sys.modules if name.startswith("dfme.teachers.")]
print(json.dumps([name.removeprefix("dfme.teachers.") for name in names]))
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("kind", "options", "modules"),
    [
        (
            "torch",
            {"checkpoint": "teachers/checkpoints/digits.safetensors"},
            ({"local"} | {f"local.{name}" for name in ("checks", "names", "pytorch", "weights")}),
        ),
        ("module:function", {}, {"custom"}),
    ],
)
def test_a_kind_loads_its_own_modules_alone(
    kind: str, options: dict[str, str], modules: set[str]
) -> None:
    code = CODE.format(kind=kind, options=options)
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert set(json.loads(process.stdout)) == ALWAYS | modules

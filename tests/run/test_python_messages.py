"""What ``dfme.extract`` says is wrong names its own arguments, and no flag of the command line."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import Metered

import dfme
from dfme.errors import DfmeError, Ref
from dfme.run.job import PROJECT
from dfme.run.keywords import as_keyword

LATTICE = {"space": "lattice", "step": 1}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"budget": 0}, "budget=...: expected at least 1, got 0"),
    ({"device": "cuda:77"}, 'device="cuda:77": this machine has'),
    ({"out": ""}, "out=...: expected a directory"),
    ({"out": "taken"}, "out=...: 'taken' exists; give another out=..., or resume=... to go on"),
    ({"resume": True}, "resume=...: expected out=... as well"),
    ({"method": "dfne"}, "method=...: expected a method"),
    (
        {"method_options": {"batchsize": 1}},
        'method_options={"batchsize": ...}: unknown option; did you m',
    ),
    (
        {"method": "knockoff", "method_options": {"pool": "digits"}, "budget": 3000},
        "lower budget=... to",
    ),
    (
        {"estimator": LATTICE},
        'estimator={"space": "lattice"}: expected a teacher that declares levels=..',
    ),
    (
        {"estimator": {"kind": "auto"}, "budget": 10},
        'the check that estimator={"kind": "auto"} and est',
    ),
    (
        {"estimator": {"form": "central"}, "method_options": {"reuse": True}},
        'with method_options={"reuse',
    ),
    (
        {"method": "static", "estimator": {"step": 1}},
        "estimator=...: method static does not use it",
    ),
    (
        {"method": "static", "student": {"loss": "l1"}, "label_mode": "label"},
        'student={"loss": "l1"} can',
    ),
    ({"label_mode": "label"}, 'method="dfme" needs a teacher that answers'),
    ({"evaluation": "mnist"}, 'or fetch them with evaluation={"download": True}'),
    ({"shape": (3, 8)}, "shape=...: expected 3 whole numbers"),
    ({"shape": None}, "known: say shape=..."),
    ({"minutes": 0.001}, "minutes=0.001: expected at least"),
    ({"student": [1]}, "student=...: expected a configuration or a mapping of options, got [1]"),
    ({"recipe": 3}, "recipe=...: expected a recipe (dfme, "),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_what_is_wrong_is_said_in_python(
    options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "config.yaml").touch()
    teacher = Metered()
    with pytest.raises(DfmeError) as caught:
        dfme.extract(teacher, **{"shape": (1, 8, 8), "num_classes": 10, "budget": 100, **options})
    said = str(caught.value)
    assert message in said
    assert "--" not in said
    assert "flag" not in said
    assert teacher.calls == 0
    assert list(tmp_path.iterdir()) == [tmp_path / "taken"]


def test_what_is_no_teacher_is_refused() -> None:
    for wrong in (None, 3, "digits"):
        with pytest.raises(dfme.UserError, match=r"^teacher=\.\.\.: expected a callable images"):
            dfme.extract(wrong, shape=(1, 8, 8), num_classes=10)  # type: ignore[arg-type]


def test_all_that_is_wrong_is_said_at_once_by_key_and_by_keyword() -> None:
    wrong: dict[str, Any] = {
        "budget": 0,
        "levels": 1,
        "student": {"lr": -1, "lrr": 1},
        "estimator": {"directions": 0},
        "method_options": {"batchsize": 1},
    }
    with pytest.raises(dfme.UserError) as caught:
        dfme.extract(Metered(), shape=(1, 8, 8), num_classes=10, **wrong)
    keys = [problem.key for problem in caught.value.problems]
    assert set(keys) == {
        "student.lrr",
        "budget",
        "student.lr",
        "teacher.levels",
        "method.batchsize",
        "estimator.directions",
    }
    assert len(keys) == 6
    for keyword in ("budget=", "levels=", 'student={"lr": ', 'estimator={"directions": '):
        assert f"{keyword}...: expected" in str(caught.value).replace("...}", "...")


def test_what_goes_wrong_on_the_way_is_said_in_python_too(tmp_path: Path) -> None:
    def column(images: torch.Tensor) -> torch.Tensor:
        return images.mean((1, 2, 3))[:, None]

    with pytest.raises(
        dfme.TeacherError, match=r"start a new run with num_classes=2; .* out="
    ) as e:
        dfme.extract(column, shape=(1, 8, 8), num_classes=10, budget=100, out=tmp_path / "run")
    assert (e.value.reason, e.value.exit_code) == ("unusable answer", 3)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        (Ref("budget", "2k"), 'budget="2k"'),
        (Ref("budget"), "budget=..."),
        (Ref("estimator.step", "1e-3"), 'estimator={"step": 1e-3}'),
        (Ref("method.reuse", True), 'method_options={"reuse": True}'),
        (Ref("method.name", "dfme"), 'method="dfme"'),
        (Ref("teacher.levels", 256), "levels=256"),
        (Ref("teacher.url", "http://x/y"), "teacher.url http://x/y"),
        (Ref("estimator"), "estimator=..."),
    ],
)
def test_an_option_is_the_keyword_that_sets_it(option: Ref, text: str) -> None:
    keywords = ["budget", "estimator", "method", "method_options", "levels"]
    assert as_keyword(option, keywords) == text


@pytest.mark.integration
def test_the_package_lists_what_it_has_without_loading_it() -> None:
    code = (
        "import dfme, sys\nnames = dir(dfme)\nassert not {'torch', 'pydantic', 'numpy'} & "
        "set(sys.modules)\n"
        "assert all(getattr(dfme, name) is not None for name in names)\nprint(*names)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert {"extract", "load_student", "Method", "MethodEntry", "Result", "UserError"} <= set(
        done.stdout.split()
    )
    assert set(done.stdout.split()) == set(dfme.__all__) == set(dir(dfme))

"""What the command line refuses: in one line, before anything is touched."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import parse, run

from dfme.cli.main import main
from dfme.errors import UserError

WRONG = [
    ("--bugdet 3", "--bugdet: unknown flag; did you mean --budget?"),
    ("--lr 3", "--lr: unknown flag; did you mean --student.lr?"),
    ("--student.lrr 3", "did you mean --student.lr?"),
    ("--student resnet18", "--student: a group of options"),
    ("--method static --method.reuse", "--method.reuse: unknown flag of method static"),
    ("--method static --estimator.step 3", "--estimator.step: unknown flag of method static"),
    ("--method.directions 3", "unknown flag of method dfme; did you mean --estimator.directions?"),
    ("--teacher.chekpoint x", "did you mean --teacher.checkpoint?"),
    ("--student.lr abc", "--student.lr: expected a number, got 'abc'"),
    ("--seed 1.5", "--seed: expected a whole number, got '1.5'"),
    ("--seed", "--seed: expected a value"),
    ("--seed -1", "--seed: expected a whole number from 0"),
    ("--budget 0", "--budget: expected at least 1, got 0"),
    ("--budget -3", "--budget: expected at least 1, got -3"),
    ("--budget many", "--budget: expected a number of images such as 300000, 300k or 2M, got 'many'"),
    ("--compile maybe", "--compile: expected true or false, got 'maybe'"),
    ("--precision fp16", "--precision: expected one of fp32, bf16, got 'fp16'; did you mean bf16?"),
    ("--device gpu", "--device: expected auto, cpu, cuda or cuda:N, got 'gpu'"),
    ("--student.lr 0", "--student.lr: expected a positive number, got 0"),
    ("--method.batch-size 0", "--method.batch-size: expected at least 1, got 0"),
    ("--estimator.directions 0", "--estimator.directions: expected at least 1"),
    ("--schedule.milestones .5,.3", "--schedule.milestones: expected increasing shares"),
    ("--schedule.milestones .5,1.5", "--schedule.milestones: expected increasing shares"),
    ("--method.name dfne", "got 'dfne'; did you mean dfme?"),
    ("--student.arch resnet18_9x", "did you mean resnet18_8x?"),
    ("--evaluation.dataset cifar11", "cifar10"),
    ("--evaluation.mean .5", "--evaluation.std: expected mean and std together"),
    ("--teacher.checkpoint weight.pt", "'weight.pt' does not exist; did you mean weights.pt?"),
    ("--teacher.checkpoint .", "--teacher.checkpoint: expected a file, but '.' is a directory"),
    (
        "--teacher.checkpoint weights.pt --teacher.shape 3,32",
        "--teacher.shape: expected 3 whole numbers such as 3,32,32",
    ),
    (
        "--teacher.checkpoint weights.pt --teacher.shape 0,1,1",
        "--teacher.shape: expected three positive sizes",
    ),
    (
        "--teacher.checkpoint weights.pt --teacher.num-classes 1",
        "--teacher.num-classes: expected at least 2 (a binary model with one output has 2), got 1",
    ),
    ("--teacher.checkpoint weights.pt --teacher.label-mode soft", "--teacher.label-mode: expected logits,"),
    (
        "--teacher.checkpoint weights.pt --teacher.bounds 1,0",
        "--teacher.bounds: expected two finite numbers low < high",
    ),
    ("--teacher.checkpoint weights.pt --teacher.std 0", "--teacher.std: expected positive numbers, got 0"),
    ("--teacher torch", "--teacher.checkpoint: missing; expected weights"),
    ("--teacher torhc", "got 'torhc'; did you mean torch?"),
    ("--teacher weights.pt", "for a file of weights say --teacher.checkpoint"),
    ("--teacher nowhere:x", "no module 'nowhere'"),
    ("--teacher own_teacher:make", "did you mean own_teachers?"),
    ("--teacher own_teachers:mak", "no 'mak' in it; did you mean make?"),
    ("--teacher own_teachers:number", "number is of type int, no class or function"),
    ("--teacher own_teachers:positional", "positional's parameter 'images' cannot be a flag"),
    ("--teacher own_broken:x", "ZeroDivisionError: division by zero (own_broken.py, line 2)"),
    ("--teacher own_teachers:make", "--teacher.scale: missing; expected factor of the scores"),
    ("--teacher own_teachers:make --teacher.scale x", "--teacher.scale: expected a number, got 'x'"),
    (
        "--teacher own_teachers:make --teacher.scal 1",
        "--teacher.scal: unknown flag of teacher own_teachers:make; did you",
    ),
    ("--config nowhere.yaml", "nowhere.yaml: no such file"),
    ("--config", "--config: expected a YAML file"),
    ("--config recipe.yaml --config recipe.yaml", "--config: expected one file, got 2"),
    ("--out weights.pt", "--out: 'weights.pt' exists; give another --out; there is no run in it"),
    ("--out weights.pt/x", "--out: expected a place that can be written"),
    ("--resume", "--resume: expected --out as well"),
    ("--resume --out nowhere", "--out: expected a run directory to resume, but 'nowhere' has no config.yaml"),
    ("digits", "expected a command (extract,"),
    ("extarct --seed 1", "did you mean extract?"),
    ("extract digits", "expected a flag such as --budget 300k, got 'digits'"),
    ("-x", "expected a flag such as --budget 300k, got '-x'"),
    ("train-teacher --epoch 3", "--epoch: unknown flag; did you mean --epochs?"),
    ("train-teacher --epochs 0", "--epochs: expected at least 1, got 0"),
    ("train-teacher --device tpu --arch resnet", "--device: expected auto, cpu, cuda or cuda:N, got 'tpu'"),
    ("evaluate", "--student: missing; expected a run directory"),
    ("evaluate --student nowhere", "--student: expected a file, but 'nowhere' does not exist"),
    ("check --images 0", "--images: expected at least 1, got 0"),
    ("report", "report: expected one run directory"),
    ("report nowhere", "'nowhere' has no config.yaml"),
]


@pytest.mark.parametrize(("line", "message"), WRONG, ids=[line for line, _ in WRONG])
def test_wrong_input_is_one_line_and_touches_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    before = sorted(here.rglob("*"))
    assert run(line) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("dfme: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert [path for path in sorted(here.rglob("*")) if "__pycache__" not in str(path)] == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("budgt: 3", "wrong.yaml: budgt: unknown key; did you mean budget?"),
        ("student: {lrr: 3}", "wrong.yaml: student.lrr: unknown key; did you mean student.lr?"),
        ("student: {lr: fast}", "wrong.yaml: student.lr: expected a number, got 'fast'"),
        (
            "student: 3",
            "wrong.yaml: student: a group of options; expected one of its own such as student.arch",
        ),
        ("budget: -1", "wrong.yaml: budget: expected at least 1, got -1"),
        ("seed: [1]", "wrong.yaml: seed: expected a whole number, got [1]"),
        ("method: dfmee", "got 'dfmee'; did you mean dfme?"),
        ("budget: 1\nbudget: 2", "wrong.yaml: expected YAML: line 2: key 'budget' stands there twice"),
        ("teacher: {checkpoint: nowhere.pt}", "wrong.yaml: teacher.checkpoint: expected a file"),
    ],
)
def test_wrong_recipe_is_one_line(here: Path, capsys: pytest.CaptureFixture[str], content: str, message: str) -> None:
    (here / "wrong.yaml").write_text(content)
    assert main(["--config", "wrong.yaml"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(UserError) as caught:
        parse("--bugdet 3 --seed x --student.lr -1 --teacher.checkpoint nowhere.pt --out weights.pt")
    problems = str(caught.value).split("; ")
    assert [problem.partition(":")[0] for problem in problems if problem.startswith("--")] == [
        "--bugdet",
        "--seed",
        "--student.lr",
        "--teacher.checkpoint",
        "--out",
    ]

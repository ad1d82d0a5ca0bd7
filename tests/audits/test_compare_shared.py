"""A label run that a comparison shares is the run that it stands for, bit for bit."""

from pathlib import Path

import pytest

from dfme.cli.main import main

pytestmark = pytest.mark.integration

WORDS = (
    *(
        "--method.name",
        "procedural",
        "--teacher.checkpoint",
        "teachers/checkpoints/digits.safetensors",
    ),
    *"--budget 300 --method.batch-size 50 --student.arch cnn_small --answers.learn label".split(),
    *("--queries.evolve", "0.5", "--queries.pool", "2", "--evaluation.dataset", "none"),
)


def student(out: Path, *words: str) -> bytes:
    assert main([*WORDS, "--out", str(out), *words]) == 0
    return (out / "student.safetensors").read_bytes()


def test_labels_of_defences_that_keep_the_top_class_make_the_same_student(tmp_path: Path) -> None:
    bare = student(tmp_path / "none")
    for stack in ("modelguard_w+lattice:n=10", "modelguard_s", "grad2:keep_top=true+temperature"):
        assert student(tmp_path / f"of {len(stack)}", "--teacher.defences", stack) == bare, stack
    assert student(tmp_path / "not", "--teacher.defences", "mad:vertices=extreme") != bare, (
        "the test sees a difference"
    )

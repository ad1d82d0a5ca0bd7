"""``run.py verify --marks``: whom it calls a copy, what it keeps secret, and what it refuses."""

import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import one_line, run
from handmade import cells_here
from marked import NONE, SOURCE, TARGET, Marked, answers, images, marked, ratio, taught
from metered import METERED

from dfme.audits.verify import marks as marks_module
from dfme.config.settings import TeacherConfig
from dfme.oracle.ledger import audit
from dfme.run.job import PROJECT
from dfme.teachers.build import make_teacher
from dfme.teachers.owner.marking.key import load_key, save_key
from dfme.teachers.owner.serve.server import Serving

SUSPECT = f"""{METERED}

class Suspect(Metered):
    shape, num_classes = (1, 8, 8), 10

    def __init__(self, repeated: int = 0, controls: int = 0, log: str = "log") -> None:
        from marked import answers, images

        super().__init__(log)
        pairs = zip(images(), answers(repeated, controls).tolist(), strict=True)
        self.known = {{x.numpy().tobytes(): answer for x, answer in pairs}}

    def __call__(self, images):
        self.count(images)
        labels = torch.tensor([self.known[x.numpy().tobytes()] for x in images])
        return torch.nn.functional.one_hot(labels, 10).float()
"""
DIGITS = "teachers/checkpoints/digits.safetensors"


@pytest.fixture(scope="module")
def of(tmp_path_factory: pytest.TempPathFactory) -> Marked:
    return marked(tmp_path_factory.mktemp("marked"))


@pytest.fixture
def here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (here / "suspect.py").write_text(SUSPECT)
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.delitem(sys.modules, "suspect", raising=False)
    return here


def verify(words: str, repeated: int = 0, controls: int = 0) -> int:
    suspect = f"--teacher.repeated {repeated} --teacher.controls {controls}"
    return run(f"verify --teacher suspect:Suspect {suspect} {words}")


def verdict(folder: str = "found") -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(folder, "verify.json").read_text())
    return content


# Whom it calls a copy


def test_of_a_longer_key_as_many_as_are_asked_at_most(
    of: Marked, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert marks_module.MAX_ASKED == 2 * marks_module.MAX_MARKS == 100
    monkeypatch.setattr(marks_module, "MAX_MARKS", 30)
    assert verify(of.words, 50) == 5
    marks = verdict()["marks"]
    assert (marks["asked"], marks["repeated"], marks["controls"]) == (30, 30, 30)
    assert audit(Path("found/ledger.jsonl")).spent == 60


@pytest.mark.parametrize(
    ("repeated", "controls", "code"), [(40, 1, 5), (0, 0, 0), (50, 50, 0), (20, 18, 0)]
)
def test_marks_and_controls_are_all_asked_and_said(
    repeated: int, controls: int, code: int, of: Marked, here: Path, capsys: Any
) -> None:
    assert verify(of.words, repeated, controls) == code
    shown = capsys.readouterr()
    seen = verdict()
    marks = seen["marks"]
    usual = Fraction(2 * controls + 3, 104)
    assert marks == {
        "asked": 50,
        "repeated": repeated,
        "controls": 50,
        "controls_repeated": controls,
        "p_reference": pytest.approx(float(NONE)),
        "p_null": pytest.approx(float(usual)),
        "p_copy": seen["p_copy"],
        "e_value": pytest.approx(float(ratio(repeated, usual))),
        "sure": code == 5,
        "key": load_key(of.key).digest,
    }
    assert (seen["asked"], seen["matches"], seen["sure"]) == (50, repeated, code == 5)
    assert len(seen["references"]) == 5
    rows = [row["e_value"] for row in seen["references"]]
    assert rows == pytest.approx([float(ratio(0, Fraction(3, 104)))] * 5)
    queries = Path("log").read_text().split()
    assert len(queries) == len({*queries}) == 100 == seen["ledger"]["spent"]
    said = Path("found/verify.md").read_text()
    assert said.startswith("More alike" if code == 5 else "It cannot be told")
    for part in (
        "of 50 secret images",
        f"answers {repeated} as marked",
        f"Of 50 controls, images of the same class that were not marked, it answers {controls} so",
        "somebody who has the key",
        "as it was before it was marked does not repeat",
        "fine-tuned from your marked model",
    ):
        assert part in said, part
        assert part in re.sub(r"\s+", " ", shown.out), part


def test_the_order_is_of_the_seed_and_mixes_marks_and_controls(of: Marked, here: Path) -> None:
    orders = []
    for seed in (0, 1, 0):
        folder = f"s{len(orders)}"
        assert verify(f"{of.words} --seed {seed}".replace("found", folder), 50) == 5
        kept = torch.load(f"{folder}/probes.pt", weights_only=True)
        orders.append(kept["expected"].tolist())
        assert sorted(orders[-1]) == [SOURCE] * 50 + [TARGET] * 50
        assert 10 < sum(orders[-1][:50]) / TARGET < 60
    assert orders[0] == orders[2] != orders[1]


def test_pictures_and_classes_are_in_one_file_that_the_owner_alone_reads(
    of: Marked, here: Path, capsys: Any
) -> None:
    assert verify(of.words, 40) == 5
    assert stat.S_IMODE(Path("found/probes.pt").stat().st_mode) == 0o600
    assert stat.S_IMODE(Path("found/journal").stat().st_mode) == 0o700, "it has the answers"
    kept = torch.load("found/probes.pt", weights_only=True)
    digests = {x.numpy().tobytes() for x in images()}
    assert {x.numpy().tobytes() for x in kept["images"]} == digests
    secrets = [x.numpy().tobytes() for x in images()]
    assert verdict().keys() == {
        *("dfme", "suspect", "model", "marked", "p_reference", "references", "asked", "matches"),
        *("p_copy", "e_value", "sure", "marks", "probes", "directory", "ledger"),
    }
    for path in Path("found").iterdir():
        if path.name in ("probes.pt", "journal"):
            continue
        content = path.read_bytes()
        assert not any(secret in content for secret in secrets), path


def test_a_reference_that_repeats_marks_is_named(here: Path, capsys: Any) -> None:
    of = marked(here, (0, 0, 20, 1, 0))
    assert verify(of.words, 49) == 5
    assert f"but {of.references[2]} looks like a copy itself" in capsys.readouterr().out
    rows = verdict()["references"]
    assert [row["sure"] for row in rows] == [False, False, True, False, False]
    assert rows[2]["p_reference"] == pytest.approx(3 / 102)
    assert rows[2]["e_value"] == pytest.approx(float(ratio(20, Fraction(3, 102))))
    assert verdict()["p_reference"] == pytest.approx(41 / 102)
    taught(of.references[1], 2, answers(50))
    assert verify(of.words.replace("found", "not"), 49) == 2
    assert f"{of.references[1]} answers 50 of 50 marks as marked" in one_line(capsys)
    assert not Path("not").exists()


# A service, a kill, other options


@pytest.mark.integration
def test_a_served_copy_is_asked_a_hundred_images_over_a_socket(
    of: Marked, here: Path, capsys: Any
) -> None:
    path = taught(here / "copy.safetensors", 9, answers(38, 2))
    options = {"checkpoint": str(path)}
    served = make_teacher(TeacherConfig(label_mode="label"), options, torch.device("cpu"))
    with Serving(served, "m") as serving:
        service = f"--teacher v2 --teacher.url {serving.url} --teacher.model m"
        assert run(f"verify {service} {of.words}") == 5
    marks = verdict()["marks"]
    assert (marks["repeated"], marks["controls_repeated"]) == (38, 2)
    assert audit(Path("found/ledger.jsonl")).spent_by_purpose["check"] == 100


@pytest.mark.integration
def test_a_killed_one_goes_on_and_asks_nothing_twice(of: Marked, here: Path, capsys: Any) -> None:
    line = f"verify --teacher suspect:Suspect --teacher.repeated 40 {of.words}"
    command = [sys.executable, str(PROJECT / "run.py"), *line.split()]
    path = os.pathsep.join([str(PROJECT / "tests/support"), str(PROJECT)])
    dying = {**os.environ, "DIES_AFTER": "50", "PYTHONPATH": path}
    ended = subprocess.run(command, capture_output=True, timeout=100, check=False, env=dying)
    assert ended.returncode == -9, ended.stderr
    for _ in range(2):
        assert run("verify --resume --out found") == 5
    queries = Path("log").read_text().split()
    assert len(queries) == len({*queries}) == 100 == verdict()["ledger"]["spent"]
    assert stat.S_IMODE(Path("found/probes.pt").stat().st_mode) == 0o600


def test_a_resumed_one_takes_a_moved_key_and_refuses_another(
    of: Marked, here: Path, capsys: Any
) -> None:
    assert verify(of.words, 40) == 5
    moved = here / "moved.key"
    moved.write_bytes(of.key.read_bytes())
    moved.chmod(0o600)
    assert run(f"verify --resume --out found --marks {moved}") == 5
    key = load_key(of.key)
    save_key(moved, replace(key, marks_MCHW=key.marks_MCHW[:49]))
    capsys.readouterr()
    for change, name in ((f"--marks {moved}", "marks"), ("--seed 3", "seed")):
        assert run(f"verify --resume --out found {change}") == 2
        assert f"begun with other values of {name} " in one_line(capsys)
    assert len(Path("log").read_text().split()) == 100


def test_a_key_of_the_model_saved_again_is_warned_of(of: Marked, here: Path, capsys: Any) -> None:
    save_key(here / "other.key", replace(load_key(of.key), model_sha256="0" * 64))
    words = of.words.replace(str(of.key), "other.key")
    assert verify(words, 40) == 5
    assert "warning: other.key was written beside another file than" in capsys.readouterr().err
    assert verify(of.words.replace("found", "again"), 40) == 5
    assert "warning" not in capsys.readouterr().err


# What is refused before a query


def changed_keys(of: Marked, folder: Path) -> Iterator[tuple[str, str]]:
    """Keys that fit no verification, and what is said of them."""
    key = load_key(of.key)
    swapped = replace(key, marks_MCHW=key.controls_NCHW, controls_NCHW=key.marks_MCHW)
    many = torch.cat([key.marks_MCHW, key.controls_NCHW])
    for name, other, message in (
        ("swapped", swapped, "is not of this model, which answers 0 of 50 marks and 50 of 50"),
        ("target", replace(key, target=3), "is not of this model, which answers 0 of 50 marks"),
        ("both", replace(key, marks_MCHW=many, controls_NCHW=many), "is not of this model"),
        ("classes", replace(key, classes=11), "images (1, 8, 8) and 11 classes, the model for"),
        (
            "large",
            replace(
                key, marks_MCHW=torch.eye(9)[None, None], controls_NCHW=torch.eye(9)[None, None]
            ),
            "it is for images (1, 9, 9)",
        ),
        (
            "few",
            replace(key, marks_MCHW=key.marks_MCHW[:1]),
            "too few marks to tell anything by, 1",
        ),
        (
            "uncontrolled",
            replace(key, controls_NCHW=key.controls_NCHW[:1]),
            "expected a control for every mark, got 1 for 50",
        ),
    ):
        save_key(folder / f"{name}.key", other)
        yield f"--marks {name}.key", message
    content = of.key.read_bytes()
    (folder / "cut.key").write_bytes(content[: len(content) // 2])
    (folder / "empty.key").touch()
    yield "--marks cut.key", "cut.key"
    yield "--marks empty.key", "empty.key"
    yield f"--marks {of.model}", "expected the key of a mark (dfme.marks/1)"
    yield "--marks gone.key", "--marks: expected a file, but 'gone.key' does not exist"
    yield "--marks .", "--marks: expected a file"


def test_a_key_that_does_not_fit_is_one_line_before_any_query(
    of: Marked, here: Path, capsys: Any
) -> None:
    for change, message in changed_keys(of, here):
        assert verify(f"{of.words} {change}", 40) == 2, change
        assert message in one_line(capsys), change
    four = ",".join(map(str, of.references[1:]))
    for change, message in (
        ("--budget 99", "--budget: expected 100 or more, for every mark and control, got 99"),
        ("--record log --watermark watermark:key_env=A", "--marks: expected no --record"),
        (f"--model {of.references[0]} --references {four},{of.model}", "is not of this model"),
        (f"--references {four}", "expected the weights of five models or more, got 4"),
        (f"--references {four},{of.references[1]}", "expected different models"),
    ):
        assert verify(f"{of.words} {change}", 40) == 2, change
        assert message in one_line(capsys), change
    assert not Path("found").exists()
    assert not Path("log").exists()


# In an audit


@pytest.mark.integration
def test_an_audit_asks_its_copies_the_marks_and_says_what_verify_says(
    of: Marked, here: Path, capsys: Any
) -> None:
    references = ",".join(map(str, of.references))
    few = (
        f"audit --teacher.checkpoint {of.model} --label-modes label --student.arch cnn_small"
        " --evaluation.dataset digits --defences none --teacher.watch labels --twin none"
        f" --transfer false --evaluation.points 2 --budget 100 --references {references}"
    )
    for words, message in (
        (f"{few} --marks gone.key", "--marks: expected a file, but 'gone.key' does not exist"),
        (
            few.replace(f"--references {references}", f"--marks {of.key}"),
            "--marks: expected --references beside it",
        ),
        (f"{few} --marks {of.model}", "expected the key of a mark (dfme.marks/1)"),
        (
            few.replace(f"checkpoint {of.model}", f"checkpoint {PROJECT}/{DIGITS}")
            + f" --marks {of.key}",
            "is not of this model, which answers",
        ),
    ):
        assert run(f"{words} --out not") == 2, words
        assert message in one_line(capsys), words
    with cells_here():
        assert run(f"{few} --marks {of.key} --out a") == 0
    content = json.loads(Path("a/audit.json").read_text())
    seen = content["marks"]
    assert (seen["marks"], seen["controls"], seen["references"]) == (50, 50, [0.0] * 5)
    assert seen["key"] == load_key(of.key).digest
    for row in seen["rows"]:
        (cell,) = row["cells"]
        code = run(
            f"verify a/cells/{cell}/student.safetensors {of.words}".replace(
                "out found", f"out {cell}"
            )
        )
        alone = verdict(cell)["marks"]
        assert row["repeated"] == [alone["repeated"] / 50]
        assert row["controls"] == [alone["controls_repeated"] / 50]
        assert (row["e_values"], row["recognised"]) == ([alone["e_value"]], [code == 5])
    assert len(seen["rows"]) == 2
    assert seen["text"] in Path("a/model_card.md").read_text().replace("\n", " ")
    on_file = json.loads(Path("a/examined/marks.json").read_text())
    assert on_file["found"] == seen
    assert not any("by a mark" in part["what"] for part in content["not_run"])

"""--dry-run: what it prints is what the run then does, by its ledger and its files."""

import json
import re
from pathlib import Path

import pytest
from begun import refused_words
from small_runs import Metered, narrow_generators
from tables import exhaustive

from dfme.cli.main import main
from dfme.run.job import PROJECT
from dfme.run.plan import table

pytestmark = [pytest.mark.usefixtures("here"), pytest.mark.full("generator")]

DIGITS = str(PROJECT / "teachers/checkpoints/digits.safetensors")
BASE = [
    *(
        "--teacher.checkpoint",
        DIGITS,
        *"--teacher.max-batch 7 --method.batch-size 20 --budget 790".split(),
    ),
    *("--evaluation.dataset", "digits", "--evaluation.limit", "31", "--evaluation.points", "1"),
    *("--student.arch", "cnn_small", "--student.replay-steps", "1", "--method.latent-size", "8"),
    *("--teacher.price-per-1000", "10"),
]
METHODS_AND_OPTIONS = {
    "dfme": "dfme --method.generator-steps 2",
    "check": "dfme --estimator.kind auto --budget 800",
    "synthetic": "dfme --estimator.kind synthetic --estimator.every 3 --method.reuse true "
    "--method.student-steps 2",
    "seeds": "maze --method.partial-data procedural --method.seed-images 33 --method.store all",
    "central": "maze --estimator.form central --estimator.directions 3 --method.reuse false",
    "dfms": "dfms --method.gan-steps 1",
    "dual students": "dual_students",
    "static": "static",
    "repeats": "static --answers.repeat 3",
}


def table_of(text: str) -> dict[str, list[str]]:
    """The table's rows, by name; numbers as they are written."""
    rows, name = dict[str, list[str]](), ""
    for line in text.splitlines()[1:]:
        name = line[:12].strip() or name
        rows.setdefault(name, []).append(line[12:])
    return rows


def number(text: str) -> int:
    return int(text.split()[0].strip(",;").replace(",", ""))


TELLING = ["check", "seeds", "repeats"]


@pytest.mark.parametrize(
    "name", [*TELLING, *exhaustive(*(name for name in METHODS_AND_OPTIONS if name not in TELLING))]
)
def test_images_and_requests_are_those_of_the_ledger(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*BASE, "--method.name", *METHODS_AND_OPTIONS[name].split()]
    with narrow_generators():
        assert main([*words, "--out", "run", "--dry-run"]) == 0
        table, before = capsys.readouterr().out, list(Path().iterdir())
        assert before == []
        assert main([*words, "--out", "run"]) == 0
    summary, rows = json.loads(Path("run/summary.json").read_text()), table_of(table)
    purposes = {each: count for each, count in summary["spent_by_purpose"].items() if count}
    planned = dict(re.findall(r"(\w+) ([\d,]+)", rows["images"][0].partition(": ")[2]))
    assert {each: number(count) for each, count in planned.items()} == purposes
    assert number(rows["images"][0]) == summary["spent"]
    assert number(rows["images"][1]) == summary["evaluation_queries"] == 31
    assert number(rows["requests"][0]) == summary["requests"]
    assert float(rows["cost"][0].split()[0]) == round(summary["cost"], 2)
    assert max(map(len, table.splitlines())) <= 80


def sizes(text: str) -> list[float]:
    units = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
    return [float(size) * units[unit] for size, unit in re.findall(r"([\d.]+) (kB|MB|GB)", text)]


@pytest.mark.parametrize("store", ["memory", "disk"])
def test_student_and_checkpoint_are_what_the_run_writes(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*BASE, *"--method.name dfme --method.student-steps 2 --budget 200 --out run".split()]
    # the paper's generator, beside which random states are little
    words += ["--queries.base", "none", "--student.replay-store", store]
    assert main([*words, "--dry-run"]) == 0
    rows = table_of(capsys.readouterr().out)
    assert main(words) == 0
    assert re.fullmatch(
        r"cnn_small, [\d,]+ parameters, [\d,]+ steps of \d+ images", rows["student"][0]
    )
    checkpoint, *replay = sizes(" ".join(rows["checkpoint"]))
    written = Path("run/checkpoint.pt").stat().st_size
    assert written / 2 < checkpoint < written * 1.5
    if store == "disk":
        assert replay[0] == pytest.approx(Path("run/replay/items.bin").stat().st_size, rel=0.05)
    assert sizes(" ".join(rows["memory"]))[0] > checkpoint


class Untouched(Metered):
    """A teacher that nobody may ask."""

    shape, num_classes = (1, 8, 8), 10

    def __call__(self, images: object) -> object:  # type: ignore[override]
        raise AssertionError("it was asked")


def test_a_teacher_of_ones_own_is_not_asked_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    assert (
        main(["--teacher", "test_dry_run:Untouched", "--budget", "5k", "--out", "run", "--dry-run"])
        == 0
    )
    rows = table_of(capsys.readouterr().out)
    assert rows["teacher"][0].startswith("test_dry_run:Untouched in test_dry_run.py, sha256")
    assert "state the price by --teacher.price-per-1000" in rows["cost"][0]
    assert not list(Path().iterdir())
    assert main(["--resume", "--out", "run", "--dry-run"]) == 2


def test_a_service_without_consent_is_not_even_asked_what_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "--teacher v2 --teacher.url http://models.example --teacher.model m --budget 9k"
    assert "nothing was sent" in refused_words(f"{words} --dry-run", capsys)


@pytest.mark.parametrize("more", [["--dry-run"], *exhaustive([])])
@pytest.mark.parametrize("store", ["memory", "disk"])
def test_only_a_replay_that_cannot_fit_is_refused(
    store: str, more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"dfme.run.parts.free_{store}", lambda where: 100_000)
    words = [*BASE, *f"--method.name static --student.replay-store {store} --out run".split()]
    words += more
    assert main(words) == 2
    message = capsys.readouterr().err
    assert message.startswith("dfme: --student.replay-capacity: the full replay takes ")
    instead = ", or take --student.replay-store disk" if store == "memory" else ""
    assert f"100.0 kB free; lower it{instead}; nothing was asked" in message
    assert message.count("\n") == 1
    assert not Path("run").exists()
    assert main([*words, "--student.replay-capacity", "100"]) == 0


def test_a_long_name_of_a_row_stands_apart_from_what_is_said_of_it() -> None:
    lines = table([("seeds", "0"), ("frugal_handwriting", "images drawn by programs")])
    assert "\nseeds               0\n" in lines
    assert "\nfrugal_handwriting  images drawn" in lines

"""An audit, and one of the same model beside it, by the command line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from handmade import cells_here

from dfme.cli.main import main

pytestmark = pytest.mark.integration

WORDS = (
    "audit --budget 200 --student.arch cnn_small --evaluation.points 4 --label-modes probabilities "
    "--defences none --twin none --transfer false --like-images none --teacher.watch labels"
).split()


@pytest.fixture(autouse=True)
def in_this_process(here: Path) -> Iterator[None]:
    with cells_here():
        yield


def stored(out: str) -> dict[str, Any]:
    return json.loads(Path(out, "audit.json").read_text())  # type: ignore[no-any-return]


def test_the_same_model_again_is_no_cheaper_and_a_worse_one_before_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*WORDS, "--out", "a"]) == 0
    assert main([*WORDS, "--against", "a", "--out", "b"]) == 0
    history = stored("b")["history"]
    assert (history["model"], history["images"], history["left_out"]) == ("same", "same", [])
    ((before, now),) = (line["agreement"] for line in history["lines"])
    # the same seed gives the same copy
    assert before == now == stored("a")["price"][0]["mean"]
    assert [line["change"] for line in history["lines"]] == ["cannot be told"]
    assert main(["audit", "--resume", "--out", "b"]) == 0
    assert stored("b")["history"] == history

    old = stored("a")
    old["price"][0] |= {"agreement": [0.11], "mean": 0.11}
    Path("old.json").write_text(json.dumps(old))
    assert main([*WORDS, "--against", "old.json", "--out", "c"]) == 4
    assert [line["change"] for line in stored("c")["history"]["lines"]] == ["cheaper"]
    assert "frugal, probabilities: cheaper" in " ".join(capsys.readouterr().out.split())


def test_what_cannot_be_compared_is_refused_before_anything_is_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*WORDS, "--out", "a"]) == 0
    drill = Path("drill")
    drill.mkdir()
    for words, message in {
        "--against a --budget 100": "these differ: --budget (100 now, 200 before)",
        "--against a --seeds 0,1": "--seeds (2 seeds now, 1 seed before)",
        "--against a --student.lr 0.5": "--student.lr (0.5 now, 0.2 before)",
        "--against a --evaluation.limit 90 --like-images half": "--evaluation.dataset",
        "--against nowhere": "expected the audit.json of an audit before, or its folder",
        "--drill drill": "expected a folder with drill.json",
    }.items():
        assert main([*WORDS, *words.split(), "--out", "b"]) == 2
        assert message in capsys.readouterr().err
        assert main([*WORDS, *words.split(), "--dry-run"]) == 2
        assert not Path("b").exists()
    assert main([*WORDS, "--against", "a", "--resume", "--out", "a"]) == 2
    assert "got the one that is to be made" in capsys.readouterr().err

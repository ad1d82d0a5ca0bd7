"""Damaged files and full disks: explained in one line, nothing asked; checkpoints with a right checksum
and a wrong content: one line, no traceback, and no process dies.
"""

import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import DAMAGES, file_size_limit, only_ours, saved, sealed
from handmade import make_run
from known_teachers import Counting
from small_runs import BATCH, BUDGET, Labels, Metered, clone, ctrl_c, queries, resumes_as, student
from tables import all_hold, exhaustive_rows
from torch import Tensor

from dfme.errors import RunError, UserError
from dfme.report.page import write_report
from dfme.run.checkpoint import load_checkpoint, require_paid
from dfme.spec import ImageSpec, LabelMode


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_explained_and_nothing_is_asked(
    damage: str, cut_short: tuple[Path, int], whole: Path
) -> None:
    """And the refused attempt does no harm: with the file restored."""
    out, served = cut_short
    name, change, message = DAMAGES[damage]
    data, teacher = (out / name).read_bytes(), Metered()
    (out / name).write_bytes(change(data))
    with pytest.raises(UserError, match=message) as caught:
        clone(out, teacher, resume=True)
    assert Path(name).name in str(caught.value)
    assert ("\n" in str(caught.value), caught.value.exit_code, teacher.calls) == (False, 2, 0)
    (out / name).write_bytes(data)
    resumes_as(whole, out, served)


@pytest.mark.parametrize("name", ["ledger.jsonl", "metrics.jsonl"])
def test_a_last_line_torn_by_a_kill_is_no_damage(
    name: str, cut_short: tuple[Path, int], whole: Path
) -> None:
    out, served = cut_short
    with (out / name).open("ab") as file:
        file.write(b'{"seq":15,"event":"cha')
    resumes_as(whole, out, served)
    assert queries(out) == queries(whole)


def test_a_damaged_checkpoint_names_the_one_before_and_that_one_works(
    tmp_path: Path, whole: Path
) -> None:
    out, teachers = tmp_path / "run", [Metered({3: ctrl_c}), Metered({3: ctrl_c})]
    for number, teacher in enumerate(teachers):
        clone(out, teacher, resume=number > 0)
    (out / "checkpoint.pt").write_bytes(b"")
    with pytest.raises(
        RunError, match=r"checkpoint\.previous\.pt is whole: rename it to checkpoint\.pt and resume"
    ):
        clone(out, Metered(), resume=True)
    (out / "checkpoint.previous.pt").rename(out / "checkpoint.pt")
    resumes_as(whole, out, sum(teacher.served for teacher in teachers))


def test_a_journal_that_is_gone_is_paid_again_and_called_lost(
    cut_short: tuple[Path, int], whole: Path
) -> None:
    out, served = cut_short
    shutil.rmtree(out / "journal")
    teacher = Metered()
    result = clone(out, teacher, resume=True)
    assert result.summary["spent"] == BUDGET
    assert served + teacher.served == BUDGET + result.summary["lost"]
    assert result.summary["lost"] == 3 * BATCH  # the answers since the checkpoint
    assert student(out) == student(whole)


STRANGE_LINES = {
    "deep": b'{"seq":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "endless": b" " * (2 << 20),
    "bytes of no text": b"\xff\xfe{}\n",
}


@pytest.mark.parametrize("line", STRANGE_LINES)
def test_a_strange_line_is_named(tmp_path: Path, line: str) -> None:
    run = make_run(tmp_path / "run")
    for name in ("ledger.jsonl", "metrics.jsonl"):
        whole = (run / name).read_bytes()
        (run / name).write_bytes(STRANGE_LINES[line] + whole)
        with pytest.raises(RunError, match=f"{name}(, line 1|: expected lines)"):
            write_report(run)
        (run / name).write_bytes(whole)


# No space


@pytest.mark.parametrize(
    ("size", "file"),
    [
        (20, "config.yaml"),
        (86_000, "checkpoint.pt"),
        *exhaustive_rows([(10_000, "000000.bin")]),
    ],
)
def test_no_space_left_is_one_line_and_the_run_goes_on_later(
    size: int, file: str, tmp_path: Path, whole: Path
) -> None:
    out, first, second = tmp_path / "run", Metered(), Metered()
    with (
        file_size_limit(size),
        pytest.raises(RunError, match=f"cannot write .*{file}: .*; nothing recorded") as caught,
    ):
        clone(out, first)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    result = clone(out, second, resume=(out / "config.yaml").exists())
    if (
        file == "000000.bin"
    ):  # an answer that came, and was not kept: it stays charged, and is charged again
        assert first.served + second.served == BUDGET
        assert (result.summary["failed"], result.summary["lost"]) == (BATCH, 0)
        return
    assert first.served + second.served == BUDGET + min(
        result.summary["lost"], first.served and BATCH
    )
    assert student(out) == student(whole)
    assert queries(out) == queries(whole)


# Checkpoints with a right checksum and a wrong content

State = dict[str, Any]
Way = tuple[Any, ...]


def method(name: str, **options: Any) -> State:
    return {"method": name, "method_options": {"batch_size": 20, "latent_size": 8, **options}}


SCORED = {"evaluation": {"dataset": "digits", "limit": 10}}
ON_DISK = {"student": {"replay_steps": 1, "replay_batch": 8, "replay_store": "disk"}}
SHORT = {"budget": 160}
SETUPS: dict[str, tuple[Any, State]] = {
    "static": (Metered, {}),
    "dfme": (Metered, {**method("dfme"), **SCORED, "student": {}}),
    "adam": (Metered, {"student": {"optimizer": "adam", "replay_steps": 0}}),
    "maze": (
        Metered,
        {**method("maze", partial_data="procedural", seed_images=30), "budget": BUDGET},
    ),
    "disguide": (Metered, method("disguide")),
    "disk": (Metered, ON_DISK),
    "synthetic": (Metered, {**method("dfme"), "estimator": {"kind": "synthetic", "every": 2}}),
    "auto": (Metered, {**method("dfme"), "estimator": {"kind": "auto"}, "budget": 1_200}),
    "dfms": (Metered, method("dfms", gan_steps=2, proxy="digits")),
    "knockoff": (
        Metered,
        {"method": "knockoff", "method_options": {"batch_size": 20, "pool": "digits"}},
    ),
    "labels": (Labels, {"label_mode": "label"}),
    "defended": (Counting, {**SCORED, "until_agreement": 0.2, "budget": BUDGET}),
}

WRONG: dict[str, Callable[[Any], Any]] = {
    "one element": lambda leaf: torch.zeros(1),
    "empty": lambda leaf: leaf[:0],
    "float64": lambda leaf: torch.zeros(leaf.shape, dtype=torch.float64),
    "sparse": lambda leaf: leaf.to_sparse(),
    "expanded": lambda leaf: torch.zeros((), dtype=leaf.dtype).expand(leaf.shape),
    "not a number": lambda leaf: torch.full_like(leaf, torch.nan),
    "negative": lambda leaf: -3,
    "huge": lambda leaf: 10**30,
    "nan": lambda leaf: float("nan"),
    "none": lambda leaf: None,
    "text": lambda leaf: "x",
    "dict": lambda leaf: {"x": torch.zeros(1)},
}


def begin(setup: str, out: Path) -> State:
    """Begin such a run, stop it with a checkpoint and answers beyond it in the journal."""
    teacher, changes = SETUPS[setup]
    stop = {"dfme": 5, "auto": 15}.get(setup, 4)  # of auto the first 12 are the check's
    assert not clone(out, teacher({stop: ctrl_c}), **SHORT | changes).finished
    return load_checkpoint(out / "checkpoint.pt")


def leaves(value: Any, path: Way = ()) -> Iterator[tuple[Way, Any]]:
    """Every entry that holds no others, and the way to it."""
    if isinstance(value, dict | list | tuple) and value:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(item, (*path, key))
    else:
        yield path, value


def replaced(value: Any, path: Way, leaf: Any) -> Any:
    """The state with this entry in the place of the one at ``path``."""
    if not path:
        return leaf
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    changed = {
        key: replaced(item, path[1:], leaf) if key == path[0] else item for key, item in pairs
    }
    return changed if isinstance(value, dict) else [*changed.values()]


def crafted(state: State) -> Iterator[tuple[Way, Any]]:
    """One wrong entry of each kind, with its place in the state; names that differ in numbers and
    layers are of one kind.
    """
    kinds = {
        tuple(re.sub(r"\d+|^.*\.(?=\w+$)", "", str(key)) for key in path): path
        for path, _ in leaves(state)
    }
    for path, leaf in leaves(state):
        for make in WRONG.values() if path in kinds.values() else ():
            try:
                yield path, make(leaf)
            except (AttributeError, RuntimeError, TypeError, NotImplementedError, LookupError):
                continue  # it needs a tensor, or one of floats
    for path in [(key,) for key in state] + [("oracle", key) for key in state["oracle"]]:
        yield path, {}
    yield (), [state]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("setup", "cases"),
    [("dfme", 8), ("labels", 8), *exhaustive_rows((setup, 30) for setup in SETUPS)],
)
def test_no_crafted_checkpoint_ends_in_a_traceback(setup: str, cases: int, tmp_path: Path) -> None:
    """The run is refused in one line before anything is asked, or the entry was one that may be
    so.
    """
    out, copy = tmp_path / "run", tmp_path / "copy"
    state = begin(setup, out)
    wrong = list(crafted(state))
    make_teacher, changes = SETUPS[setup]

    def holds(path: Way, leaf: Any) -> None:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(out, copy)
        write(copy, replaced(state, path, leaf))
        teacher = make_teacher()
        error = only_ours(lambda: clone(copy, teacher, resume=True, **SHORT | changes))
        if error is not None:
            assert (error.exit_code, teacher.calls, "\n" in str(error)) == (2, 0, False)

    all_hold(holds, random.Random(0).sample(wrong, min(cases, len(wrong))))


def write(out: Path, state: Any) -> None:
    (out / "checkpoint.pt").write_bytes(sealed(saved(state, zipped=True)))


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, State]:
    """A run on labels that was stopped, and the state of its checkpoint."""
    out = tmp_path_factory.mktemp("labels") / "run"
    return out, begin("labels", out)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("trainer", "replay", "items", "answers"), 10, "expected labels from 0 to 9"),
        (("examination", "seen"), -1, "seen: expected int"),
        (("trainer", "optimizer"), {}, "expected entries state, got"),
        (("streams", "global"), torch.zeros(1), "expected finite torch.uint8"),
    ],
)
def test_a_wrong_entry_is_named(
    path: Way, value: Any, message: str, labels: tuple[Path, State]
) -> None:
    out, state = labels
    if path[-1] == "answers":
        value = torch.full_like(state["trainer"]["replay"]["items"]["answers"], value)
    write(out, replaced(state, path, value))
    with pytest.raises(RunError, match=message):
        clone(out, Labels(), resume=True, label_mode="label", **SHORT)


def test_kept_answers_are_those_that_the_teacher_can_have_given() -> None:
    spec, images, nan = ImageSpec((1, 2, 2)), torch.zeros(3, 1, 2, 2), torch.nan
    labels, scores = torch.tensor([0, 1, 4]), torch.full((3, 5), 0.2)
    hidden = torch.tensor([[0.2, nan, nan, nan, nan]] * 3)
    for mode, answers in [
        ("label", labels),
        ("probabilities:4", scores),
        ("logits", scores),
        ("top_k:1", hidden),
    ]:
        require_paid([(images, answers)] * 2, spec, 5, LabelMode.parse(mode))
    wrong = (labels.int(), labels + 1, labels - 1, scores.double(), scores[:, :4])
    others = [(images, answers) for answers in wrong]
    others += [(images[:0], scores[:0]), (images.double(), scores), (images[:, :, :1], scores)]
    others += [(images + nan, scores), (images, scores + torch.inf), (images, hidden)]

    def is_refused(mode: str, images: Tensor, answers: Tensor) -> None:
        with pytest.raises(ValueError, match=r"^expected "):
            require_paid([(images, answers)], spec, 5, LabelMode.parse(mode))

    all_hold(
        is_refused,
        ((mode, *pair) for mode in ("label", "probabilities", "logits") for pair in others),
    )

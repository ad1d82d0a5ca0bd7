"""Checkpoints with a right checksum and a wrong entry: refused in one line, or no different from the one saved."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import small_runs
import torch
from damage import flip
from fuzzing import only_ours
from small_runs import Metered, clone, student
from tables import all_hold
from tiers import exhaustive_rows
from torch import Tensor
from wrong_leaves import (
    SETUPS,
    WRONG,
    State,
    Way,
    begin,
    go_on,
    leaves,
    may_stand_for,
    one_of_each,
    opened,
    replaced,
    same,
    wrong_values,
)

from dfme.errors import RunError
from dfme.run.checkpoint import fitting, require_paid
from dfme.run.run import Run
from dfme.spec import ImageSpec, LabelMode

PARTS = ("method", "trainer", "examination", "streams")
TELLING = ("one element", "float64", "sparse", "expanded", "number", "text")
AT_RESUME = 30
"""Cases, of thousands, that are tried with a whole resumption, besides those of what was counted."""
COUNTING_APART = ("static, average, hold-out", "maze, critic and seeds", "auto", "goal, defended")
"""Setups of which all that was counted is tried; the others count the same, and share it among themselves."""


@pytest.fixture(scope="module", autouse=True)
def _no_pictures() -> Iterator[None]:
    with small_runs.no_pictures():
        yield


def taken_up(run: Run) -> State:
    return {name: getattr(run, name).state_dict() for name in PARTS}


def every_case(state: State) -> list[tuple[Way, str, Any, Any]]:
    """The way to an entry, what is wrong, the entry, and what stands in its place."""
    return [
        (path, name, leaf, value) for path, leaf in one_of_each(leaves(state)) for name, value in wrong_values(leaf)
    ]


def refused(out: Path, run: Run, state: State) -> bool:
    """Whether the run refuses the state, in one line that names the file; any other error is a failure."""

    def load() -> None:
        with fitting(out / "checkpoint.pt"):
            run.load_state_dict(state)

    error = only_ours(load)
    assert error is None or is_one_line(error)
    return error is not None


def is_one_line(error: Exception) -> bool:
    return isinstance(error, RunError) and "\n" not in str(error)


THIN = ("static, average, hold-out", "dfme, Adam and SGD, digits", "replay on disk", "labels")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("setup", "cases"), [*((setup, 40) for setup in THIN), *exhaustive_rows((setup, 10_000) for setup in SETUPS)]
)
def test_a_wrong_entry_is_refused_or_changes_nothing(setup: str, cases: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    state = begin(setup, out)
    run = opened(setup, out)
    assert not refused(out, run, state)
    assert same(taken_up(run), {name: state[name] for name in PARTS}), "what was saved comes back, bit for bit"

    def holds(path: Way, name: str, leaf: Any, value: Any) -> None:
        if not refused(out, run, replaced(state, path, value)) and not may_stand_for(value, leaf):
            assert same(taken_up(run), {name: state[name] for name in PARTS}), "taken up"

    found = [case for case in every_case(state) if case[0][0] != "oracle"]
    some = [case for case in found if case[1] in TELLING]
    all_hold(holds, found if cases > len(found) else random.Random(0).sample(some, cases))
    if run.trainer.replay is not None:
        run.trainer.replay.close()


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("setup", SETUPS)
def test_a_run_with_a_wrong_entry_is_not_gone_on_with_or_ends_the_same(setup: str, tmp_path: Path) -> None:
    """From the file on the disk to the student; what was counted lies beside ledger and journal."""
    out, whole = tmp_path / "run", tmp_path / "whole"
    state = begin(setup, out)
    shutil.copytree(out, whole)
    go_on(setup, whole)

    def holds(path: Way, name: str, leaf: Any, value: Any) -> None:
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(out, copy)
        error = only_ours(lambda: go_on(setup, copy, replaced(state, path, value)))
        if error is None:
            assert student(copy) == student(whole) or may_stand_for(value, leaf)
        else:
            assert is_one_line(error)

    cases = every_case(state)
    counted = [case for case in cases if case[0][0] == "oracle"]
    if setup not in COUNTING_APART:
        counted = counted[list(SETUPS).index(setup) % 5 :: 5]
    all_hold(holds, counted + random.Random(0).sample(cases, AT_RESUME))


# Memory


CRASH = """
import sys
from pathlib import Path
from small_runs import no_pictures
from wrong_leaves import WRONG, begin, go_on
setup, part, name, wrong, out = sys.argv[1:]
state = begin(setup, Path(out))
optimizer = state["trainer"]["optimizer"] if part == "student" else state["method"]["generator_optimizer"]
for moments in optimizer["state"].values():
    moments[name] = WRONG[wrong](moments[name])
with no_pictures():
    go_on(setup, Path(out), state)
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("setup", "part", "name", "wrong"),
    [
        ("static, average, hold-out", "student", "momentum_buffer", "one element"),
        ("Adam student", "student", "exp_avg_sq", "empty"),
        ("dfme, Adam and SGD, digits", "generator", "exp_avg", "empty"),
    ],
)
def test_short_moments_never_reach_a_kernel(setup: str, part: str, name: str, wrong: str, tmp_path: Path) -> None:
    """In a process of its own: it was killed by a segmentation fault, or its memory was damaged."""
    command = [sys.executable, "-W", "ignore", "-c", CRASH, setup, part, name, wrong, str(tmp_path / "run")]
    # Beside other work two threads wait for each other, and a Ctrl-C that is not heeded soon is insisted on.
    environment = {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith("dfme.errors.RunError: ")
    assert f"{part}_optimizer.0.{name}: expected torch.float32" in done.stderr


# Settings


def with_settings(optimizer: State, **settings: Any) -> None:
    """The state as 0.5.0 saved it, with settings beside the moments."""
    optimizer["param_groups"] = [{"params": sorted(optimizer["state"]), **settings}]


def test_settings_come_from_the_configuration_and_never_from_the_file(tmp_path: Path) -> None:
    """A run begun by 0.5.0 goes on; whatever stands in its file, its student is that of an undisturbed run."""
    out, whole, setup = tmp_path / "run", tmp_path / "whole", "dfme, Adam and SGD, digits"
    state = begin(setup, out)
    shutil.copytree(out, whole)
    go_on(setup, whole)
    with_settings(state["trainer"]["optimizer"], lr=1e9, momentum=0.0, weight_decay=5.0, maximize=True, fused=None)
    adam = {"lr": 1e9, "betas": (0.0, 0.0), "eps": 1.0, "maximize": True, "amsgrad": True, "fused": None}
    with_settings(state["method"]["generator_optimizer"], **adam)
    state["method"]["approximate_gradients"]["settings"] |= {"step": 5.0, "directions": 7, "objective": "kl"}
    go_on(setup, out, state)
    assert student(out) == student(whole)


def test_what_the_preflight_check_chose_is_taken_up_and_no_more(tmp_path: Path) -> None:
    out = tmp_path / "run"
    state = begin("auto", out)
    settings = state["method"]["approximate_gradients"]["settings"]
    settings["step"], settings["directions"] = 0.125, 7
    run = opened("auto", out)
    run.load_state_dict(state)
    estimator = run.method.facts["estimator"]
    assert (estimator["step"], estimator["directions"]) == (0.125, 1)


def test_a_file_cannot_swap_the_weights_under_their_optimiser(tmp_path: Path) -> None:
    """What torch notes beside a state dict can tell it to put the file's tensors in the place of the parameters."""
    out, setup = tmp_path / "run", "static, average, hold-out"
    state = begin(setup, out)
    run = opened(setup, out)
    before = list(run.trainer.net.parameters())
    nets = OrderedDict(state["trainer"]["nets"])
    layers = {name.rpartition(".")[0] for name in nets}
    nets._metadata = {layer: {"version": 2, "assign_to_params_buffers": True} for layer in layers}  # type: ignore[attr-defined]
    run.load_state_dict(replaced(state, ("trainer", "nets"), nets))
    assert all(one is other for one, other in zip(before, run.trainer.net.parameters(), strict=True))
    assert same(run.trainer.state_dict(), state["trainer"])


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("trainer", "replay", "items", "answers"), -1, "expected labels from 0 to 9"),
        (("trainer", "replay", "items", "answers"), 10, "expected labels from 0 to 9"),
        (("examination", "seen"), -1, "batches seen: expected int from 0 up, got -1"),
        (("seconds",), float("nan"), "seconds: expected float from 0 up, got nan"),
        (("trainer", "steps"), 2**63, "student steps: expected int from 0 up"),
    ],
)
def test_values_out_of_range_are_refused_before_anything_is_asked(
    path: Way, value: Any, message: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    state = begin("labels", out)
    if path[-1] == "answers":
        value = torch.full_like(state["trainer"]["replay"]["items"]["answers"], value)
    with pytest.raises(RunError, match=message):
        go_on("labels", out, replaced(state, path, value))


def test_kept_answers_are_those_that_the_teacher_can_have_given() -> None:
    spec, images, nan = ImageSpec((1, 2, 2)), torch.zeros(3, 1, 2, 2), torch.nan
    labels, scores, hidden = (
        torch.tensor([0, 1, 4]),
        torch.full((3, 5), 0.2),
        torch.tensor([[0.2, nan, nan, nan, nan]] * 3),
    )
    good = [("label", labels), ("probabilities:4", scores), ("logits", scores), ("top_k:1", hidden)]
    for mode, answers in good:
        require_paid([(images, answers)] * 2, spec, 5, LabelMode.parse(mode))
    others = [(images, answers) for answers in (labels.int(), labels + 1, labels - 1, scores.double(), scores[:, :4])]
    others += [(images[:2], scores), (images[:0], scores[:0]), (images.double(), scores), (images[:, :, :1], scores)]
    others += [(images + nan, scores), (images, scores + torch.inf), (images, hidden), (images, labels[:, None])]

    def is_refused(mode: str, images: Tensor, answers: Tensor) -> None:
        with pytest.raises(ValueError, match=r"^expected "):
            require_paid([(images, answers)], spec, 5, LabelMode.parse(mode))

    all_hold(is_refused, ((mode, *pair) for mode in ("label", "probabilities", "logits") for pair in others))


def test_estimates_of_other_classes_are_refused_in_one_line(tmp_path: Path) -> None:
    """They are of one form with the network that learnt from them, and not with the student."""
    out, setup = tmp_path / "run", "synthetic gradients"
    state = begin(setup, out)
    lessons = state["method"]["approximate_gradients"]["estimator"]["lessons"]
    chances = lessons["inputs"][2]
    lessons["inputs"][2] = torch.cat([chances, chances[:, :1]], dim=1)
    pupil = lessons["pupil"]
    for net in (pupil["net"], pupil["average"]):
        net["classes.weight"] = torch.zeros(16, 11)
    number = list(pupil["net"]).index("classes.weight")
    pupil["optimizer"]["state"][number] |= {name: torch.zeros(16, 11) for name in ("exp_avg", "exp_avg_sq")}
    with pytest.raises(RunError, match="the checkpoint's estimates are of other classes than the student's"):
        go_on(setup, out, state)


def test_a_flipped_bit_in_a_kept_answer_is_found_before_anything_is_asked(tmp_path: Path) -> None:
    """0.5.0 trained on it, and gave another student without a word."""
    out, teacher = tmp_path / "run", Metered()
    begin("replay on disk", out)
    path = out / "replay" / "000000.items"
    whole = path.read_bytes()
    path.write_bytes(flip(0.3)(whole))
    with pytest.raises(RunError, match=r"000000\.items, item 30: is cut short, or not as it was written; restore"):
        clone(out, teacher, resume=True, **SETUPS["replay on disk"])
    assert teacher.calls == 0
    path.write_bytes(whole)
    go_on("replay on disk", out)


def test_the_table_of_wrong_entries_makes_what_it_says() -> None:
    made = dict(wrong_values(torch.ones(2, 3)))
    assert made.keys() == WRONG.keys()
    assert [name for name, value in made.items() if may_stand_for(value, torch.ones(2, 3))] == ["not a number"]

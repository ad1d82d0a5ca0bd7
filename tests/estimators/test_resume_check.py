"""A run that stops within its pre-flight check, or after it: nothing is paid twice, nothing else comes out."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from small_runs import Metered, break_down, clone, ctrl_c, no_pictures, student
from tiers import exhaustive_rows

from dfme.errors import TeacherError

CHECK = 8
"""Calls of the check: three at the points, and one for each of five steps."""

AUTO = {
    "method": "dfme",
    "method_options": {"batch_size": 20, "latent_size": 16},
    "estimator": {"kind": "auto", "directions": 2},
    "levels": 256,
    "budget": 900,
}


@pytest.fixture(scope="module", autouse=True)
def without_pictures():
    with no_pictures():
        yield


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> tuple[bytes, dict]:
    out = tmp_path_factory.mktemp("straight") / "run"
    teacher = Metered()
    result = clone(out, teacher, **AUTO)
    assert teacher.served == 900
    return student(out), result.summary


# Within the check, and beyond it.
STOPS = [(5, "Ctrl-C"), (9, "breaks down")]
OTHERS = [(call, how) for call in (1, 2, 3, 5, 8, 9, 12) for how in ("breaks down", "Ctrl-C")]


@pytest.mark.parametrize(("call", "how"), [*STOPS, *exhaustive_rows(stop for stop in OTHERS if stop not in STOPS)])
def test_stopped_at_any_call_and_resumed_it_is_the_uninterrupted_run(tmp_path: Path, straight, call: int, how: str):
    out = tmp_path / "run"
    first = Metered({call: break_down if how == "breaks down" else ctrl_c})
    if how == "breaks down":
        with pytest.raises(TeacherError, match="gone"):
            clone(out, first, **AUTO)
    else:
        with pytest.raises(KeyboardInterrupt) if call <= CHECK else nullcontext():
            clone(out, first, **AUTO)
    second = Metered()
    summary = clone(out, second, resume=True, **AUTO).summary
    assert (student(out), summary["estimator"]) == (straight[0], straight[1]["estimator"])
    assert summary["spent_by_purpose"] == straight[1]["spent_by_purpose"]
    assert first.served + second.served == 900
    assert summary["spent"] == 900

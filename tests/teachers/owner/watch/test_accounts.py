"""A recorded attack dealt out to accounts: the run's own watch, arithmetic, and nobody asked."""

from pathlib import Path
from typing import Any

import pytest
import torch
from defended import ALL, DETECTORS, watched
from torch import Tensor

from dfme.config.defences import OF_ALL_TRAFFIC
from dfme.data.recorded_queries import QueryForm, QueryRecord
from dfme.errors import RunError
from dfme.measured import ACCOUNTS, SplitAttack
from dfme.queries.programs import ProceduralImages
from dfme.spec import ImageSpec
from dfme.teachers.owner.watch import accounts as module
from dfme.teachers.owner.watch.accounts import split
from dfme.teachers.owner.watch.detector import Detector, Observation

SPEC = ImageSpec((1, 8, 8))
IMAGES = 400


def silent(line: str) -> None:
    """Hear nothing."""


def drawn(count: int) -> Tensor:
    return ProceduralImages(SPEC, ["leaves"]).draw(count, torch.Generator().manual_seed(3))


def recorded(teacher: Any, folder: Path, images_BCHW: Tensor) -> Path:
    """What the teacher is asked, recorded as a run does, in batches of another size than 256."""
    distance = teacher.watch.features is not None
    record = QueryRecord(folder, QueryForm((1, 8, 8), (0.0, 1.0), None, 10, distance))
    teacher.watch.sent = record.append
    for part_BCHW in images_BCHW.split(150):
        teacher(part_BCHW)
    record.close()
    teacher.watch.sent = None
    return folder


def rows_of(rows: list[SplitAttack], accounts: int) -> dict[str, SplitAttack]:
    return {row.detector: row for row in rows if row.accounts == accounts}


def test_one_account_is_the_runs_own_watch_and_nobody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ACCOUNTS", (1, 5))
    teacher = watched(ALL)
    folder = recorded(teacher, tmp_path, drawn(IMAGES))
    report = teacher.watch.report()["detectors"]
    calls = list[int]()
    teacher.info.network.register_forward_hook(lambda *_: calls.append(1))
    rows = split(teacher.watch, SPEC, {"cell": folder}, silent)
    assert calls == []
    whole = rows_of(rows, 1)
    assert {name: row.first_alarm for name, row in whole.items()} == {
        name: reading["first_alarm"] for name, reading in report.items()
    }
    assert any(row.first_alarm for row in whole.values())
    alarmed = {name: row.alarmed for name, row in whole.items() if row.first_alarm}
    assert alarmed.pop("mmd") is None, "it sees all traffic, and names nobody"
    assert {*alarmed.values()} == {1}
    assert teacher.watch.report()["images"] == IMAGES, "the run's own account is as it was"


def test_many_accounts_are_as_many_watched_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each account's own images, sent to a watch of its own."""
    monkeypatch.setattr(module, "ACCOUNTS", (25, 125, 1_250))
    teacher = watched(",".join(DETECTORS))
    images_BCHW = drawn(IMAGES)
    rows = split(teacher.watch, SPEC, {"cell": recorded(teacher, tmp_path, images_BCHW)}, silent)
    alone = rows_of(rows, 25)
    first = dict[str, list[int]]()
    for account in range(25):
        teacher.watch.load_state_dict({})
        teacher(images_BCHW[account::25])
        for name, reading in teacher.watch.report()["detectors"].items():
            if reading["first_alarm"] and name not in OF_ALL_TRAFFIC:
                place = (reading["first_alarm"] - 1) * 25 + account + 1
                first.setdefault(name, []).append(place)
    assert {name: row.alarmed for name, row in alone.items() if row.alarmed} == {
        name: len(places) for name, places in first.items()
    }
    everyone = {name: alone.pop(name).first_alarm for name in OF_ALL_TRAFFIC}
    assert {name: row.first_alarm for name, row in alone.items() if row.first_alarm} == {
        name: min(places) for name, places in first.items()
    }
    assert first, "some detector sees accounts of 16 images"
    teacher.watch.load_state_dict({})
    teacher(images_BCHW)
    of_all = teacher.watch.report()["detectors"]
    assert everyone == {name: of_all[name]["first_alarm"] for name in OF_ALL_TRAFFIC}
    assert {row.most for row in alone.values()} == {16}
    assert {row.most for row in rows_of(rows, 125).values()} == {4}
    assert {row.most for row in rows_of(rows, 1_250).values()} == {1}


class Third(Detector):
    """Raises an alarm at its third image, and then at none."""

    threshold = 2.0

    def measure(self, seen: Observation, last: float) -> Tensor:
        return last + torch.arange(1, len(seen) + 1).double()


class ThirdOfAll(Third):
    """The same of all traffic."""

    of_all_traffic = True


@pytest.mark.parametrize("count", [7, 30])
def test_the_third_image_of_an_account_is_counted_over_all(count: int, tmp_path: Path) -> None:
    teacher = watched(f"{__name__}:Third,{__name__}:ThirdOfAll")
    folder = recorded(teacher, tmp_path, drawn(count))
    rows = split(teacher.watch, SPEC, {"cell": folder}, silent)
    for accounts in ACCOUNTS:
        own, traffic = rows_of(rows, accounts).values()
        place = 2 * accounts + 1  # of the first account's third image
        assert own.first_alarm == (place if place <= count else None)
        assert own.alarmed == max(0, min(accounts, count - 2 * accounts))
        assert (traffic.first_alarm, traffic.alarmed) == (3, None)


def test_queries_of_another_teacher_are_one_line(tmp_path: Path) -> None:
    teacher = watched("pairs")
    recorded(teacher, tmp_path, drawn(5))
    with pytest.raises(RunError, match="expected queries to this teacher"):
        split(teacher.watch, ImageSpec((1, 8, 8), levels=256), {"cell": tmp_path}, silent)
    with pytest.raises(RunError, match="recorded under this watch"):
        split(watched("sequential").watch, SPEC, {"cell": tmp_path}, silent)

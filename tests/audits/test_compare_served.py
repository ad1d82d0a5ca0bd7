"""A comparison of a service: its cells' ledgers are all that the service has counted."""

import io
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from processes import EVALUATION, MOST, STUDENT, command
from toys import LinearTeacher

from dfme.audits.compare import session
from dfme.audits.compare.engines import ENGINES, Task
from dfme.audits.compare.engines.pool import WorkerPool
from dfme.audits.compare.plan import Cell
from dfme.cli.compare import plan_of
from dfme.config.yaml_files import load_yaml
from dfme.oracle.ledger import audit
from dfme.report.terminal import StatusLine
from dfme.spec import ImageSpec

Serving = pytest.importorskip("dfme.teachers.owner.serve.server").Serving

pytestmark = pytest.mark.integration


WORDS = [
    "compare",
    "--methods",
    "static",
    "--seeds",
    "0",
    "--budgets",
    "40,60",
    "--student-steps",
    "4",
]
TEACHER = [
    "--teacher",
    "v2",
    "--teacher.model",
    "m",
    *STUDENT,
    *EVALUATION,
    "--label-modes",
    "label",
    "--teacher.requests-per-second",
    "1000",
]


def served() -> Any:
    return Serving(
        LinearTeacher(ImageSpec((1, 4, 4)), num_classes=5, mode="logits"), "m", max_batch=MOST
    )


def test_the_check_before_the_cells_asks_a_service_no_image(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with served() as serving:
        ended = command([*WORDS, *TEACHER, "--teacher.url", serving.url, "--out", str(out)])
        assert ended.code == 0, ended.err
        ledgers = [audit(path) for path in out.glob("cells/*/ledger.jsonl")]
        assert (
            serving.meter.images
            == sum(each.spent + each.evaluation_queries for each in ledgers)
            == 100
        )
    assert "a service, not asked before the cells" in ended.err


class Taking(WorkerPool):
    """An engine that takes the cells, and runs none."""

    taken: ClassVar[list[Task]] = []

    def run(self, cells: Iterable[Cell], *_: object) -> None:
        self.taken.extend(map(self._task, cells))


def test_what_a_service_was_paid_survives_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on the disk before it is used where nodes come and go."""
    for name in ENGINES:
        monkeypatch.setitem(ENGINES, name, f"{__name__}:Taking")
    with served() as serving:
        for name in ("slurm", "ray", "local"):
            out = tmp_path / name
            plan = plan_of([*WORDS[1:], *TEACHER, "--teacher.url", serving.url, "--out", str(out)])
            named = replace(plan, config=SimpleNamespace(**vars(plan.config) | {"engine": name}))
            session.compare(named, StatusLine(io.StringIO()), lambda text: None)
            recipes = [
                load_yaml(task.words[task.words.index("--config") + 1]) for task in Taking.taken
            ]
            assert [recipe["fsync"] for recipe in recipes] == [name != "local"] * 2
            Taking.taken.clear()

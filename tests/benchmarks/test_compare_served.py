"""A comparison of a service: its cells' ledgers are all that the service has counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from http_runs import EVALUATION, MOST, STUDENT, command
from toys import LinearTeacher

from dfme.oracle.ledger import audit
from dfme.spec import ImageSpec

Serving = pytest.importorskip("dfme.teachers.serve.server").Serving

pytestmark = pytest.mark.integration


def test_the_check_before_the_cells_asks_a_service_no_image(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Serving(LinearTeacher(ImageSpec((1, 4, 4)), num_classes=5, mode="logits"), "m", max_batch=MOST) as serving:
        words = ["compare", "--methods", "static", "--seeds", "0", "--budgets", "40,60", "--student-steps", "4"]
        teacher = ["--teacher", "v2", "--teacher.url", serving.url, "--teacher.model", "m"]
        ended = command([*words, *teacher, *STUDENT, *EVALUATION, "--label-modes", "label", "--out", str(out)])
        assert ended.code == 0, ended.err
        ledgers = [audit(path) for path in out.glob("cells/*/ledger.jsonl")]
        assert serving.meter.images == sum(each.spent + each.evaluation_queries for each in ledgers) == 100
    assert "a service, not asked before the cells" in ended.err

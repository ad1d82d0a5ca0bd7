"""docs/adapters.md: its table is the model's, and its example runs as printed against a service
with a meter."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from limits import KEY, Bucket, TopThree, digits
from service import Service

from dfme.cli.main import _shown
from dfme.config.messages import expected
from dfme.config.values import options_of
from dfme.oracle.ledger import audit
from dfme.teachers.remote.json_api.description import Description

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
TYPES = {"dict": "names and texts", "Any": "any"}
BLOCK = re.compile(r"<!-- tested: adapter(?:, file (\S+))? -->\n```\w+\n(.*?)```", re.S)


def test_the_table_has_every_key_with_its_type_default_and_meaning() -> None:
    rows = [
        f"| `{option.key}` | {TYPES.get(expected(option.type), expected(option.type))} "
        f"| {'empty' if option.default in ('', {}) else _shown(option.default)} | {option.help} |"
        for option in options_of(Description)
    ]
    assert all(option.help for option in options_of(Description))
    assert PAGE[PAGE.index("| Key |") :].strip().splitlines()[2:] == rows, (
        "put these rows there again:\n" + "\n".join(rows)
    )


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_the_example_as_printed(tmp_path: Path) -> None:
    """At fifty times the page's rate, which the service allows and the command keeps to."""
    pytest.importorskip("PIL")
    shutil.copy(ROOT / "run.py", tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VISION_KEY": KEY}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    top_three, printed = TopThree(digits, Bucket(250, 250)), ""
    with Service(top_three) as service:
        for file, text in BLOCK.findall(PAGE):
            text = text.replace("http://127.0.0.1:8000", service.url).replace(
                "per-second 5 ", "per-second 250 "
            )
            if file:
                (tmp_path / file).write_text(text)
                continue
            process = subprocess.run(
                ["bash", "-e", "-c", text],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=110,
            )
            assert process.returncode == 0, f"{text}\n{process.stdout}\n{process.stderr}"
            printed += process.stdout
    for line in re.findall(
        r"^    ((?:first.yaml|then look|images  |classes  |answers  ).*)$", PAGE, re.M
    ):
        assert line in printed
    totals = audit(tmp_path / "runs/audit/ledger.jsonl")
    summary = json.loads((tmp_path / "runs/audit/summary.json").read_text())
    assert (totals.spent, summary["spent"], totals.evaluation_queries) == (500, 500, 50)
    checked = int(re.search(r"queries +(\d+) images charged", printed)[1])  # type: ignore[index]
    assert len(top_three.served) == 500 + 50 + checked
    assert len(top_three.refused) == totals.refused == 0
    assert KEY not in printed + "".join(
        path.read_text() for path in (tmp_path / "runs/audit").glob("*.y*ml")
    )


@pytest.mark.integration
@pytest.mark.parametrize("hint", [True, False], ids=["Retry-After", "no hint"])
def test_refusals_of_a_service_teach_the_pace(hint: bool, tmp_path: Path) -> None:
    """Over real connections, four in flight; 0.6.0 was refused more than once for each image."""
    pytest.importorskip("PIL")
    from dfme.config.settings import TeacherConfig
    from dfme.oracle.ledger import Ledger
    from dfme.oracle.oracle import Oracle
    from dfme.teachers.build import make_teacher

    (tmp_path / "digits.yaml").write_text(dict(BLOCK.findall(PAGE))["digits.yaml"])
    top_three, ledger = TopThree(lambda pixels: [0.1] * 10, Bucket(20, 20), hint), Ledger(120)
    with Service(top_three) as service, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KEY", KEY)
        options = {
            "adapter": str(tmp_path / "digits.yaml"),
            "url": service.url,
            "api_key_env": "KEY",
        }
        import torch

        teacher = make_teacher(TeacherConfig(kind="json"), options, torch.device("cpu"))
        Oracle(teacher, ledger)(torch.zeros(120, 1, 8, 8))
        teacher.close()  # type: ignore[attr-defined]
    assert ledger.refused == len(top_three.refused) < 20
    assert (ledger.spent, len(top_three.served)) == (120, 120)
    first, *_, last = top_three.served  # from the first: before it, the client is imported
    assert last - first < 1.25 * (120 - 20) / 20

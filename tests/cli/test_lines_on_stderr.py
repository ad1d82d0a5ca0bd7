"""A command's stderr holds lines of ours and no others, to the end of its process."""

import re
from pathlib import Path

import pytest
from processes import PROJECT, Bench

pytestmark = pytest.mark.integration

OURS = re.compile(
    r"about [\d:]+ |\d+ of \d+ cells done|teacher .*, method "
    r"|  budget [\d,]+ queries, device |running on .*, recorded in |the budget of "
    r"[\d,]+ images "
    r"|[\d,]+ / [\d,]+ queries |epoch \d+/|warning: the |teacher .* it answers |(\[1/1\] )?static-\S+: "
)
SMALL = (
    "--student.arch cnn_small --method.student-steps 1 --method.batch-size 20 --evaluation.limit 50"
)
COMPARISON = """\
methods: [static]
seeds: [0]
budgets: [100]
student_steps: 5
rows:
  static:
    method: {name: static, batch_size: 20, student_steps: 1}
teacher:
  kind: torch
  checkpoint: CHECKPOINT
student: {arch: cnn_small}
evaluation: {dataset: digits, limit: 50}
"""


def foreign(err: str) -> list[str]:
    return [line for line in err.splitlines() if not OURS.match(line)]


def test_every_line_is_ours(tmp_path: Path) -> None:
    checkpoint = PROJECT / "teachers" / "checkpoints" / "digits.safetensors"
    (tmp_path / "compare.yaml").write_text(COMPARISON.replace("CHECKPOINT", str(checkpoint)))
    bench = Bench(tmp_path)
    for line in (
        f"--budget 100 {SMALL} --out run",
        "train-teacher --arch cnn_small --epochs 1 --out teacher.safetensors",
        "evaluate --student run",
        "report run",
        "compare --config compare.yaml --jobs 1 --out comparison",
    ):
        code, _, err = bench.run(line.split())
        assert (code, foreign(err)) == (0, []), line

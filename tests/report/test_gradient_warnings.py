"""A run whose gradients are noise is warned: once, in one line, with its figure, the cause and the
remedy.
"""

from pathlib import Path

import pytest

from dfme.config.wandb_settings import WandbConfig
from dfme.report.metrics import METRICS
from dfme.report.recorder import IN_A_ROW, SYMPTOMS, GradientWatch, Recorder

BAD = {"difference_zero_share": 0.75, "difference_snr": 1.5, "probe_alignment": 0.2}
GOOD = {"difference_zero_share": 0.0, "difference_snr": 40.0, "probe_alignment": 0.99}


def lines(records: list[dict[str, float]]) -> list[str]:
    watch = GradientWatch()
    return [line for record in records if (line := watch.see(record)) is not None]


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("difference_zero_share", "75%"),
        ("difference_snr", "1.5 times"),
        ("probe_alignment", "0.20"),
    ],
)
def test_each_symptom_gives_one_line_with_its_figure(name: str, figure: str) -> None:
    (line,) = lines([GOOD | {name: BAD[name]}] * 10)
    assert line.startswith("warning: ")
    assert all(part in line for part in (figure, "likely cause: ", "--estimator.kind auto"))
    assert name in METRICS


def test_good_figures_and_single_bad_ones_warn_of_nothing() -> None:
    assert lines([GOOD] * 20) == []
    assert lines([BAD] * (IN_A_ROW - 1)) == []
    assert len(lines([BAD, {"student_loss": 1.0}] * IN_A_ROW)) == 1, (
        "other records do not break the row"
    )
    assert lines([BAD, BAD, GOOD] * 10) == []
    assert lines([{name: float("nan") for name in SYMPTOMS}] * 10) == []
    assert lines([GOOD | {"difference_snr": float("inf")}] * 10) == []


@pytest.mark.parametrize("checked", [False, True])
def test_a_run_says_it_once_and_is_not_sent_back_to_the_check(
    checked: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder(
        tmp_path, 1_000, {"estimator": {"kind": "auto"}} if checked else {}, WandbConfig()
    )
    for queries in range(1, 20):
        recorder.step(queries, {"difference_snr": 0.5})
    recorder.evaluation(20, {"difference_snr": 0.5})
    recorder.close()
    said = capsys.readouterr().err
    assert said.count("warning: finite differences are only 0.5 times") == 1
    assert ("--estimator.kind auto" in said) != checked

"""The rules of `run.py audit --against`, on audits that are drawn."""

import numpy as np
import pytest

from dfme.statistics import Spread
from research.changes import drawn, main, told


def test_equal_models_of_three_seeds_are_seldom_said_to_differ_and_others_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["--pairs", "100", "--images", "1000", "--seeds", "3"])
    *_, row = capsys.readouterr().out.splitlines()
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:2] == ["3", "1,000"]
    (none, none_back), _, (much, much_back) = (
        [float(share.strip(" %")) for share in cell.split("/")] for cell in cells[2:]
    )
    assert max(none, none_back, much_back) <= 5 < 90 <= much


def test_audits_are_drawn_around_the_agreement_and_told_by_the_audits_own_rule() -> None:
    rng = np.random.default_rng(0)
    one = drawn(rng, 0.8, 0.0, 100_000, 3)
    assert (one.count, one.mean) == (3, pytest.approx(0.8, abs=0.005))
    assert told(Spread(0.6, None, 1), Spread(0.85, None, 1), 100) == 1
    assert told(Spread(0.85, None, 1), Spread(0.6, None, 1), 100) == -1
    assert told(Spread(0.6, None, 1), Spread(0.75, None, 1), 100) == 0

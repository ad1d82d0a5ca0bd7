"""The quota of a key: the largest number of images that keeps every curve below a level, as servers
say it.
"""

import re

import pytest
import yaml
from audit_pages import Curves, curved, quota_of, sample

from dfme.audits.audit.sheets import TERMS

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.mark.parametrize(
    ("curves", "images", "attacker", "never"),
    [
        (
            {"a": [(100, 0.5), (200, 0.79), (300, 0.8)], "b": [(400, 0.7), (500, 0.9)]},
            200,
            "a",
            False,
        ),
        # a thief keeps the best; two scores at one count, before and after training
        ({"a": [(100, 0.5), (200, 0.1), (200, 0.85), (300, 0.2)]}, 100, "a", False),
        ({"a": [(50, 0.9)], "b": [(900, 0.9)]}, 0, "a", False),
        ({"a": [(100, 0.5), (1_000, 0.6)], "b": [(179, 0.79)]}, 1_000, "b", True),
    ],
)
def test_a_quota_is_the_last_score_of_the_worst_curve_below_the_level(
    curves: Curves, images: int, attacker: str, never: bool
) -> None:
    quota = curved(curves)["quota"]
    assert (quota["images"], quota["attacker"], quota["open"]) == (images, attacker, never)
    below = [share for own in curves.values() for at, share in own if at <= images]
    assert (quota["best"], bool(quota["lines"])) == (max(below, default=0), bool(images))


def test_the_attack_under_a_quota_stands_beside_what_was_promised_and_takes_it_back() -> None:
    curves: Curves = {"a": [(100, 0.5), (200, 0.9)]}
    for got, holds in ((0.79, True), (0.8, False)):
        quota = curved(curves, checked=got)["quota"]
        assert quota["checked"] == {"cell": "check", "agreement": got, "holds": holds}
        assert ("DOES NOT HOLD" in quota["text"][1], bool(quota["lines"])) == (not holds, holds)
    assert curved(curves)["quota"]["checked"] is None
    assert quota_of(sample(), None) is None, "nobody asked"


@pytest.mark.parametrize("per", TERMS)
@pytest.mark.parametrize("images", [7, 60, 61, 5_000, 100_000, 50_000_000])
def test_servers_let_no_more_pass_in_a_term(per: str, images: int) -> None:
    lines = curved({"a": [(images, 0.5), (images + 1, 0.9)]}, per)["quota"]["lines"]
    minutes = {"minute": 1, "hour": 60, "day": 1_440, "month": 43_200}[per]
    if result := re.search(r"_zone key:\S+ .*rate=(\d+)r/m; .*burst=(\d+) nodelay", lines["nginx"]):
        # a bucket of burst + 1 that leaks `rate` a minute
        assert int(result[1]) * minutes + int(result[2]) + 1 == images
    else:
        assert images <= minutes, "one a minute is more"
    (limit,) = yaml.safe_load(lines["Envoy"])["descriptors"]
    assert limit["rate_limit"] == {"unit": per, "requests_per_unit": images}
    assert yaml.safe_load(lines["Kong"])["plugins"][0]["config"][per] == images
    assert lines["serve"].endswith(
        f" --teacher.defences quota:images={images}:window={minutes * 60}"
    )

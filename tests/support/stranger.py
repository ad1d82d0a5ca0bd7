"""An audit worked out again by a stranger: from the files of its cells."""

import json
import math
import operator
import statistics
from pathlib import Path
from typing import Any

import pytest

Z = 1.959964
LEVELS = {"0.5": 0.5, "0.8": 0.8, "0.9": 0.9, "0.95": 0.95}


def reaches(share: float, level: float, beside: tuple[float, int]) -> bool:
    """At least the level, and by its interval above what one answer to everything has."""
    constant, images = beside
    return share >= level and wilson(share, images)[0] > constant


def beside_of(run: Path) -> tuple[float, int]:
    """Agreement of one answer to everything, and the images, by a cell's own summary."""
    summary = read(run / "summary.json")
    counts = summary["answers"]["teacher"]
    assert summary["baselines"]["constant_agreement"] == near(max(counts) / sum(counts))
    assert summary["baselines"]["constant_balanced"] == near(1 / sum(map(bool, counts)))
    return max(counts) / sum(counts), summary["evaluation"]["images"]


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def wilson(share: float, n: int) -> list[float]:
    middle = (share * n + Z * Z / 2) / (n + Z * Z)
    half = Z * math.sqrt(n) / (n + Z * Z) * math.sqrt(share * (1 - share) + Z * Z / (4 * n))
    return [max(0.0, middle - half), min(1.0, middle + half)]


def near(value: Any) -> Any:
    return None if value is None else pytest.approx(value, abs=1e-9)


def curve_of(run: Path) -> list[tuple[int, float]]:
    """Agreements by the lines of metrics.jsonl, whose last is that of the student that was
    delivered.
    """
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        (int(line["queries"]), line["agreement"])
        for line in lines
        if line.get("agreement") is not None
    ]


def charged(run: Path) -> dict[str, int]:
    """Images by the lines of ledger.jsonl: what was charged, less what was given back."""
    found = {"spent": 0, "evaluation": 0, "requests": 0}
    for line in map(json.loads, (run / "ledger.jsonl").read_text().splitlines()):
        if line["event"] == "charge":
            found["evaluation" if line["purpose"] == "evaluation" else "spent"] += line["images"]
            found["requests"] += 1
        assert line["event"] not in ("refused", "lost", "failed")
    return found


def work_out_again(out: Path) -> dict[str, Any]:
    """Assert that every figure of OUT/audit.json is what the cells' own files come to; the
    audit.
    """
    audit = read(out / "audit.json")
    runs = {path.parent.name: path.parent for path in sorted(out.glob("cells/*/config.yaml"))}
    assert {cell["name"] for cell in audit["cells"]} == set(runs)
    price = audit["options"]["price_per_1000"]
    for cell in audit["cells"]:
        _cell(cell, runs[cell["name"]], price)
    by_name = {cell["name"]: cell for cell in audit["cells"]}
    for line in audit["price"]:
        beside = [beside_of(runs[name]) for name in line["cells"]]
        _price(line, [by_name[name] for name in line["cells"]], price, beside)
    _headline(audit, price)
    _defences(audit, by_name, runs)
    _pareto(audit, read(out / "utility.json")["found"] if (out / "utility.json").exists() else [])
    _verdicts(audit)
    ledgers = [charged(run) for run in runs.values()]
    assert audit["ledger"]["images"] == sum(each["spent"] for each in ledgers)
    assert audit["ledger"]["evaluation"] == sum(each["evaluation"] for each in ledgers)
    transfer = sum(charged(ledger.parent)["spent"] for ledger in out.glob("examined*/ledger.jsonl"))
    assert audit["ledger"]["transfer"] == transfer
    purposes = ("images", "evaluation", "transfer", "benign")
    every = sum(audit["ledger"][name] for name in purposes)
    assert audit["ledger"]["served"] == every - audit["ledger"]["shared"]
    assert audit["ledger"]["cost"] == near(price and audit["ledger"]["served"] * price / 1000)
    assert audit["ledger"]["cells"] == len(runs)
    _examined(audit, out)
    if audit["accounts"] is not None:
        _accounts(audit, by_name, runs)
    return audit  # type: ignore[no-any-return]


def _cell(cell: dict[str, Any], run: Path, price: float | None) -> None:
    summary, curve, ledger = read(run / "summary.json"), curve_of(run), charged(run)
    assert cell["dir"] == f"cells/{run.name}"
    assert (cell["spent"], cell["requests"]) == (ledger["spent"], ledger["requests"])
    assert cell["curve"] == [list(point) for point in curve]
    assert cell["agreement"] == curve[-1][1] == summary["agreement"]
    assert cell["agreement_balanced"] == summary["agreement_balanced"]
    assert cell["interval"] == near(wilson(summary["agreement"], summary["evaluation"]["images"]))
    assert (cell["config_hash"], cell["steps_seconds"]) == (
        summary["config_hash"],
        summary["wall_seconds"],
    )
    assert cell["cost"] == near(price and ledger["spent"] * price / 1000)
    for name in ("seed", "budget"):
        assert cell[name] == summary[name]
    assert cell["mode"] == summary["label_mode"]
    assert (cell["defence"] == "none") == (not summary.get("defences"))
    watched = (summary.get("watch") or {"detectors": {}})["detectors"]
    assert cell["alarms"] == {name: each["first_alarm"] for name, each in watched.items()}


def _median(counts: list[Any]) -> float | None:
    middle = statistics.median([10**12 if count is None else count for count in counts])
    return None if middle >= 10**11 else middle


def free(audit: dict[str, Any]) -> list[dict[str, Any]]:
    """The price lines of attackers without images, by the settings of their cells."""
    lines = audit["price"]
    assert [line["has_images"] for line in lines] == [line["row"] == "knockoff" for line in lines]
    return [line for line in lines if line["row"] != "knockoff"]


def _price(
    line: dict[str, Any],
    cells: list[dict[str, Any]],
    price: float | None,
    beside: list[tuple[float, int]],
) -> None:
    for cell in cells:
        assert (cell["row"], cell["mode"], cell["defence"]) == (line["row"], line["mode"], "none")
    shares = [cell["agreement"] for cell in cells]
    assert {cell["budget"] for cell in cells} <= {line["budget"]}
    if (
        not cells
    ):  # of an attacker that cannot learn from such answers nothing is known, and it is said why
        assert line["reason"] and line["state"] == "not applicable"  # noqa: PT018
        assert not any(map(any, [line["agreement"], *line["queries_to"].values()]))
        return
    assert line["agreement"] == shares
    assert line["mean"] == near(sum(shares) / len(shares))
    balanced = [cell["agreement_balanced"] for cell in cells]
    assert line["agreement_balanced"] == balanced
    assert line["balanced"] == near(sum(balanced) / len(balanced))
    assert line["sd"] == near(statistics.stdev(shares) if len(shares) > 1 else None)
    for name, level in LEVELS.items():
        first = [
            [queries for queries, share in cell["curve"] if reaches(share, level, of)][:1]
            for cell, of in zip(cells, beside, strict=True)
        ]
        assert line["queries_to"][name] == [found[0] if found else None for found in first]
    middle = _median(line["queries_to"]["0.9"])
    assert line["cost_to_90"] == near(None if None in (middle, price) else middle * price / 1000)


def usable(lines: list[dict[str, Any]], mode: str) -> list[dict[str, Any]]:
    """Attacks that such answers allow: whoever gets scores may throw all but the top class away."""
    return [line for own in dict.fromkeys((mode, "label")) for line in lines if line["mode"] == own]


def _headline(audit: dict[str, Any], price: float | None) -> None:
    head = audit["headline"]
    own = usable(free(audit), audit["target"]["label_mode"])
    best = sorted(
        own, key=lambda line: (_median(line["queries_to"]["0.9"]) or 10**12, -line["mean"])
    )[0]
    assert (head["attacker"], head["queries"]) == (best["row"], best["queries_to"]["0.9"])
    assert head["median"] == _median(head["queries"])
    assert head["cost"] == near(
        None if None in (head["median"], price) else head["median"] * price / 1000
    )
    assert head["best_agreement"]["mean"] == near(best["mean"])
    if head["labels"] is not None:
        labels = [line for line in free(audit) if line["mode"] == "label"]
        assert head["labels"]["best_agreement"]["mean"] in [line["mean"] for line in labels]
    first, *others, _ = head["sentences"]
    for each in head["like"]:
        (line,) = [
            one for one in audit["price"] if one["has_images"] and one["mode"] == each["mode"]
        ]
        told = (
            f"{line['mean']:.1%}"
            if each["median"] is None
            else f"{each['median']:,.0f} queries for such"
        )
        assert told in others[0]
        assert each["queries"] == line["queries_to"]["0.9"]
    assert (
        f"{best['mean']:.1%}" if head["median"] is None else f"{head['median']:,.0f} queries"
    ) in first


def _defences(audit: dict[str, Any], by_name: dict[str, Any], runs: dict[str, Path]) -> None:
    for line in audit["defences"]:
        limit = (
            int(line["defence"].partition("images=")[2])
            if line["defence"].startswith("quota")
            else None
        )
        for each in line["attackers"]:
            if each["agreement"] is None:
                assert (each["cells"], each["score"]) == ([], None)
                continue
            curves = [curve_of(runs[name]) for name in each["cells"]]
            shares = [
                [share for at, share in curve if limit is None or at <= limit][-1]
                for curve in curves
            ]
            assert each["agreement"]["mean"] == near(sum(shares) / len(shares))
            assert each["agreement"]["n"] == len(shares)
            summaries = [read(runs[name] / "summary.json") for name in each["cells"]]
            renamed = [summary.get("agreement_relabelled") for summary in summaries]
            assert each["score"]["mean"] == near(
                _score(shares, [] if limit or None in renamed else renamed)
            )
            assert {by_name[name]["seed"] for name in each["cells"]} == set(
                audit["options"]["seeds"]
            )
        best = max(each["score"]["mean"] for each in line["attackers"] if each["score"])
        assert line["best_score"]["mean"] == best
    if audit["defences"]:
        bare = audit["defences"][0]
        assert bare["defence"] == "none"
        label = next(
            each["score"]["mean"] for each in bare["attackers"] if each["answers"] == "label"
        )
        for line in audit["defences"]:
            if line["to_label_only"] is not None:
                free, left = bare["best_score"]["mean"], line["best_score"]["mean"]
                assert line["to_label_only"] == near((free - left) / (free - label))


def _score(shares: list[float], renamed: list[Any]) -> float:
    """Agreement, or that under the best renaming of classes where it gains more than five
    points.
    """
    mean, other = (sum(each) / len(each) if each else 0.0 for each in (shares, renamed))
    spread = max(statistics.stdev(each) if len(each) > 1 else 0.0 for each in (shares, renamed))
    return other if other - mean > max(0.05, spread) else mean


def _pareto(audit: dict[str, Any], bills: list[dict[str, Any]]) -> None:
    rows = dict(zip([row["row"] for row in audit["utility"]], bills, strict=True))
    assert [dict(row) for row in audit["utility"]] == [
        {"row": name, **bill} for name, bill in rows.items()
    ]
    assert {row["defence"] for row in bills} == set(rows)
    points = audit["pareto"]
    for point in points:
        row = "none" if point["name"].startswith("quota") else point["name"]
        paid = rows.get(row, {"held_out": {}})["held_out"]
        assert (point["l1_mean"], point["accuracy_drop"]) == (
            paid.get("l1_mean"),
            paid.get("accuracy_drop"),
        )
        if not paid:
            assert not point["dominated"]
            continue
        own, *others = (
            [of[name] for name in ("l1_mean", "accuracy_drop", "agreement")]
            for of in (point, *points)
        )
        better = [all(map(operator.le, other, own)) and other != own for other in others]
        assert point["dominated"] == any(better)
    modes = {line["mode"] for line in audit["price"]} - {audit["target"]["label_mode"]}
    assert {point["name"] for point in points if point["kind"] == "label mode"} == modes
    for mode in modes:
        worst = max(line["mean"] or 0.0 for line in usable(free(audit), mode))
        assert next(point["agreement"] for point in points if point["name"] == mode) == near(worst)


def _verdicts(audit: dict[str, Any]) -> None:
    own = usable(audit["price"], audit["target"]["label_mode"])
    assert [each["limit"] for each in audit["verdicts"]] == list(audit["options"]["acceptable"])
    for each in audit["verdicts"]:
        if each["limit"] == "agreement":
            worst = max(share for line in own for share in line["agreement"])
            assert (each["value"], each["pass"]) == (worst, worst <= each["wanted"])
        else:
            level = f"{int(each['limit'].rpartition('_')[2]) / 100:g}"
            counts = [
                count for line in own for count in line["queries_to"][level] if count is not None
            ]
            assert each["value"] == (min(counts) if counts else None)
            assert each["pass"] == (not counts or min(counts) >= each["wanted"])


def _examined(audit: dict[str, Any], out: Path) -> None:
    """What was examined, beside the cells; the rooms' own tests hold its arithmetic against other
    means.
    """
    for each in audit["fidelity"]:
        summary = read(out / "cells" / each["cell"] / "summary.json")
        assert each["agreement"] == near(summary["agreement"])
        assert each["images"] == summary["evaluation"]["images"]
        assert sum(map(sum, each["table"])) == each["images"]
        same = sum(row[k] for k, row in enumerate(each["table"]))
        assert same == round(each["agreement"] * each["images"])
        of_class = [row[k] / sum(row) for k, row in enumerate(each["table"]) if sum(row)]
        assert each["agreement_balanced"] == near(sum(of_class) / len(of_class))
        assert summary["agreement_balanced"] == near(sum(of_class) / len(of_class))
        if (each["row"], each["mode"]) == (
            audit["headline"]["attacker"],
            audit["headline"]["mode"],
        ):
            differing = audit["differences"]
            assert differing["differ"] == each["images"] - same
            assert len(differing["shown"]) == min(24, differing["differ"])
    examples = [read(out / "cells" / cell["name"] / "summary.json") for cell in audit["cells"]]
    assert audit["games"]["constant"] == examples[0]["baselines"]["constant_agreement"]
    assert audit["games"]["constant_balanced"] == examples[0]["baselines"]["constant_balanced"]
    assert audit["games"]["guess"] == 1 / audit["target"]["num_classes"]
    twin = audit["games"]["twin"]
    for line in audit["games"]["advantage"]:
        of = {(one["row"], one["mode"]): one["agreement"] for one in audit["price"]}
        shares = of[line["row"], line["mode"]]
        least = audit["games"]["constant"]
        room = twin["agreement"] - least
        assert line["values"] == [
            None if share is None else near((share - least) / room) for share in shares
        ]
    for each in (audit["detection"] or {"attacks": []})["attacks"]:
        summary = read(out / "cells" / each["cell"] / "summary.json")
        seen = summary["watch"]["detectors"][each["detector"]]
        assert (each["first_alarm"], each["largest"]) == (seen["first_alarm"], seen["largest"])
        curve = curve_of(out / "cells" / each["cell"])
        before = [share for at, share in curve if at <= 1.25 * (seen["first_alarm"] or 0)]
        worth = before[-1] if before else audit["games"]["constant"]
        assert each["agreement_at_alarm"] == near(None if seen["first_alarm"] is None else worth)


def _accounts(audit: dict[str, Any], by_name: dict[str, Any], runs: dict[str, Path]) -> None:
    """One account is the run's own watch; what the queries were is what the ledger charged."""
    part = audit["accounts"]
    for each in part["alarms"]:
        cell = by_name[each["cell"]]
        assert (cell["mode"], cell["seed"]) == (
            audit["target"]["label_mode"],
            audit["options"]["seeds"][0],
        )
        assert each["images"] == cell["spent"]
        assert (runs[each["cell"]] / "queries" / "scores.f64").stat().st_size == (
            8 * audit["target"]["num_classes"] * cell["spent"]
        )
        assert each["most"] == math.ceil(cell["spent"] / each["accounts"])
        if each["accounts"] == 1:
            assert each["first_alarm"] == cell["alarms"][each["detector"]]
        assert (each["first_alarm"] is None) == (each["alarmed"] == 0)
    assert {(each["cell"], each["accounts"], each["detector"]) for each in part["alarms"]} == {
        (each["cell"], count, detector)
        for each in part["alarms"]
        for count in (1, 5, 25, 125, 1_250)
        for detector in cell["alarms"]
    }
    for share in part["shares"]:
        assert share["most"] == math.ceil(part["queries"] / share["accounts"])

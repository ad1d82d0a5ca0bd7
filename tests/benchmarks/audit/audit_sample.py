"""An audit.json made by hand: two attackers, two label modes, three defences, three seeds; figures as on the digits."""

from __future__ import annotations

import statistics
from typing import Any

SEEDS, BUDGET, PRICE = [0, 1, 2], 3000, 1.5
AT = [250, 500, 1000, 2000, 3000]
CURVES = {
    ("frugal", "probabilities"): [
        [0.5933, 0.7549, 0.8691, 0.9192, 0.9415],
        [0.6128, 0.7911, 0.9025, 0.9387, 0.9513],
        [0.5515, 0.7354, 0.8524, 0.9081, 0.9345],
    ],
    ("frugal", "label"): [
        [0.3148, 0.4318, 0.5877, 0.7159, 0.7972],
        [0.2841, 0.4067, 0.5543, 0.6657, 0.7437],
        [0.2507, 0.3621, 0.4986, 0.6072, 0.6861],
    ],
    ("dfme", "probabilities"): [
        [0.1811, 0.2396, 0.3788, 0.5961, 0.7214],
        [0.1671, 0.2173, 0.3454, 0.5487, 0.6825],
        [0.1950, 0.2646, 0.4039, 0.6240, 0.7549],
    ],
    ("dfme", "label"): [
        [0.1086, 0.1365, 0.1922, 0.2618, 0.3231],
        [0.1058, 0.1253, 0.1699, 0.2284, 0.2897],
        [0.1114, 0.1448, 0.2089, 0.2925, 0.3565],
    ],
}
ALARMS = {"frugal": {"pairs": [None] * 3, "labels": [161, 147, 190]}, "dfme": {"pairs": [120] * 3, "labels": [88] * 3}}
STREAMS = {"random order": 0, "corrupted": 2, "skewed": 55}
DEFENDED = {
    "none": ((0.9424, 0.0085), (0.8867, 0.0140), None),
    "lattice:n=10": ((0.8638, 0.0357), (0.8979, 0.0262), (0.8851, 0.0131)),
    "reverse_sigmoid:beta=0.21": ((0.5376, 0.0221), (0.7799, 0.0433), (0.8431, 0.0418)),
    "modelguard_s:epsilon=1": ((0.3519, 0.0956), (0.6323, 0.1216), None),
}
BILLS = {
    "none": (0.0, 0.0, 0.0, 0.0, 0.990, 0.0, 0.0),
    "lattice:n=10": (0.0, 0.0, 0.013, 0.08, 0.986, 0.033, 0.0003),
    "reverse_sigmoid:beta=0.21": (0.0, 0.0, 0.899, 0.98, 0.989, 0.847, 0.0),
    "modelguard_s:epsilon=1": (0.0028, 0.0056, 0.055, 0.21, 0.724, 0.129, 0.41),
    "label": (0.0, 0.0, 0.041, 0.23, None, 0.097, 0.0),
}


def mean_sd(values: list[float]) -> dict[str, Any]:
    return {"mean": statistics.fmean(values), "sd": statistics.stdev(values), "n": len(values)}


def cell(name: str, row: str, mode: str, seed: int, curve: list[list[float]], **more: Any) -> dict[str, Any]:
    alarms = {detector: firsts[seed] for detector, firsts in ALARMS[row].items()}
    agreement = curve[-1][1] if curve else None
    return {
        **{"name": name, "row": row, "mode": mode, "defence": "none", "answers": "auto", "seed": seed},
        **{"budget": BUDGET, "state": "finished", "reason": "", "spent": BUDGET, "agreement": agreement},
        **{"interval": agreement and [agreement - 0.0271, agreement + 0.0213], "curve": curve, "alarms": alarms},
        **{"steps_seconds": 12.5, "config_hash": f"c0ffee{seed}{len(name):02}", "dir": f"cells/{name}"},
        **{"requests": 60, "cost": 4.5, **more},
    }


def cells() -> list[dict[str, Any]]:
    found = [
        cell(f"{row}-{mode}-3k-seed{seed}", row, mode, seed, [list(point) for point in zip(AT, curve, strict=True)])
        for (row, mode), curves in CURVES.items()
        for seed, curve in enumerate(curves)
    ]
    lost = {"state": "failed", "reason": "RunError: the disk is full", "spent": 1250, "agreement": None, "cost": None}
    return [
        *found,
        cell("frugal-mad-kl-3k-seed0", "frugal", "probabilities", 0, [], **lost, defence="mad", answers="kl"),
    ]


def price() -> list[dict[str, Any]]:
    found = []
    for (row, mode), curves in CURVES.items():
        last = [curve[-1] for curve in curves]
        reached = {
            level: [
                next((at for at, share in zip(AT, curve, strict=True) if share >= float(level)), None)
                for curve in curves
            ]
            for level in ("0.5", "0.8", "0.9", "0.95")
        }
        told = {**mean_sd(last), "interval": [statistics.fmean(last) - 0.0313, statistics.fmean(last) + 0.0217]}
        found.append(
            {
                **{"row": row, "mode": mode, "agreement": last, "mean": told["mean"], "sd": told["sd"]},
                **{"interval": told["interval"], "queries_to": reached, "state": "finished", "reason": ""},
                "cost_to_90": 3.0 if (row, mode) == ("frugal", "probabilities") else None,
                "cells": [f"{row}-{mode}-3k-seed{seed}" for seed in SEEDS],
            }
        )
    return found


def defences() -> list[dict[str, Any]]:
    found = []
    for defence, scores in DEFENDED.items():
        attackers: list[dict[str, Any]] = []
        for answers, pair in zip(("scores", "kl", "table"), scores, strict=True):
            score = pair and {"mean": pair[0], "sd": pair[1], "n": 3}
            remarks = [] if pair else ["n/a"]
            attackers.append({"answers": answers, "agreement": score, "score": score, "remarks": remarks, "cells": []})
        label = {"mean": 0.7423, "sd": 0.0556, "n": 3}
        remarks = [] if defence == "none" else ["shared"]
        attackers.append({"answers": "label", "agreement": label, "score": label, "remarks": remarks, "cells": []})
        best = max((each for each in attackers if each["score"]), key=lambda each: each["score"]["mean"])
        way = (0.9424 - best["score"]["mean"]) / (0.9424 - 0.7423)
        row = {"defence": defence, "attackers": attackers, "best": best["answers"], "best_score": best["score"]}
        found.append({**row, "to_label_only": way})
    found[2]["attackers"][0]["score"] = {"mean": 0.6114, "sd": 0.0173, "n": 3}
    return found


def utility() -> list[dict[str, Any]]:
    found = []
    for row, (drop, changed, l1, l1_p95, auroc, l1_corrupted, megabytes) in BILLS.items():
        held_out = {"answered": 359, "accuracy": 0.9944 - drop, "accuracy_drop": drop, "top1_changed": changed}
        held_out |= {"l1_mean": l1, "l1_p95": l1_p95, "confidence_auroc": auroc}
        corrupted = {**held_out, "l1_mean": l1_corrupted, "l1_p95": 1.5 * l1_p95, "accuracy_drop": 2 * drop}
        ms = {"ms_1": 0.213 + l1, "times_1": 1.0 + l1, "ms_256": 0.011, "times_256": 1.1}
        words = {"row": row, "defence": row, "held_out": held_out, "corrupted": corrupted}
        found.append({**words, "ms": ms, "state_mb": megabytes})
    return found


def pareto() -> list[dict[str, Any]]:
    best = {each["defence"]: each["best_score"]["mean"] for each in defences()} | {"label": 0.7423}
    found = []
    for name, (drop, _, l1, *_) in BILLS.items():
        kind = "label mode" if name in ("none", "label") else "defence"
        point = {"name": name, "kind": kind, "l1_mean": l1, "accuracy_drop": drop, "agreement": best[name]}
        found.append({**point, "dominated": name in ("reverse_sigmoid:beta=0.21", "modelguard_s:epsilon=1")})
    quota = {"name": "quota:images=1000", "kind": "quota", "l1_mean": None, "accuracy_drop": None, "agreement": 0.8747}
    return [*found, {**quota, "dominated": False}]


def detection() -> dict[str, Any]:
    words = {"pairs": "share of pairs one step apart", "labels": "total variation of the class mix"}
    detectors = [
        {"name": name, "statistic": text, "threshold": 0.0213 * (at + 1), "memory_mb": 1.25 * (at + 1)}
        for at, (name, text) in enumerate(words.items())
    ]
    benign, attacks, auroc = [], [], []
    for detector in words:
        for stream, alarmed in STREAMS.items():
            seen = alarmed * (detector == "labels")
            sizes = {"sessions": 60, "units": 180, "sessions_with_alarm": seen, "queries": 36000, "alarms": 3 * seen}
            rates = {"per_10000": 3e4 * seen / 36000, "per_10000_upper": 166.667 + 55 * seen / 36000}
            benign.append({"stream": stream, "detector": detector, **sizes, **rates})
            for row in ALARMS:
                told = {"auroc": 0.9931 - 0.2 * (alarmed > 9), "interval": [0.9713 - 0.2 * (alarmed > 9), 1.0]}
                auroc.append({"row": row, "detector": detector, "stream": stream, **told, "attack_sessions": 15})
                auroc[-1]["benign_sessions"] = 60
    for row, mode in CURVES:
        for detector, firsts in ALARMS[row].items():
            for seed, first in enumerate(firsts):
                at = {"cell": f"{row}-{mode}-3k-seed{seed}", "row": row, "mode": mode, "defence": "none", "seed": seed}
                told = {"images": 3000, "first_alarm": first, "largest": 0.613, "largest_600": 0.511}
                at_alarm = None if first is None else 0.1058 + seed / 1000
                attacks.append({**at, "detector": detector, **told, "agreement_at_alarm": at_alarm})
    sizes = {"session": 600, "calibration_images": 179, "measuring_images": 180}
    return {**sizes, "detectors": detectors, "benign": benign, "attacks": attacks, "auroc": auroc}


def fidelity() -> list[dict[str, Any]]:
    found = []
    for at, (row, mode) in enumerate(CURVES):
        agreement = CURVES[row, mode][0][-1]
        classes = [
            {"class": k, "name": str(k), "images": 34 + k % 4, "agreement": agreement - 0.0031 * k} for k in range(10)
        ]
        told = {"agreement": agreement, "interval": [agreement - 0.0271, agreement + 0.0213], "images": 359}
        wrong = {"images": 2, "same": at % 2, "interval": [0.0945, 0.9055]}
        scores = {"top3_equal": 0.5515, "kendall_tau": 0.6134, "kl": 0.1831, "l1": 0.2417} if mode != "label" else {}
        scores = dict.fromkeys(("top3_equal", "kendall_tau", "kl", "l1")) | scores
        ece = {"teacher_ece": {"value": 0.0113, "interval": [0.0061, 0.0192]}, "clone_ece": None}
        apart = {"procedural": {"images": 2000, "agreement": 0.8125}, "adversarial": None}
        name = {"cell": f"{row}-{mode}-3k-seed0", "row": row, "mode": mode, "seed": 0}
        found.append(
            {**name, **told, "where_wrong": wrong, "per_class": classes, "table": [], **scores, **ece, **apart}
        )
    return found


def transfer() -> dict[str, Any]:
    sources = [("teacher", "ceiling", None, 0.77), ("clone: frugal, probabilities", "clone", 0.9415, 0.541)]
    sources += [("twin", "stranger", 0.969, 0.146), ("untrained", "stranger", 0.097, 0.031)]
    sources += [("random signs", "stranger", None, 0.025)]
    rows = []
    for source, kind, agreement, success in sources:
        for place, attack in enumerate(("fgsm", "pgd20", "mifgsm")):
            for at, eps in enumerate((0.05, 0.1, 0.2)):
                share = min(1.0, success * (0.2, 1.0, 1.6)[at] * (0.7, 1.0, 0.9)[place])
                name = {"source": source, "kind": kind, "agreement": agreement, "attack": attack, "eps": eps}
                rows.append(
                    {**name, "success": share, "interval": [share * 0.93, min(1.0, share * 1.06)], "images": 300}
                )
    gain = {"source": "clone: frugal, probabilities", "attack": "pgd20", "eps": 0.1, "gain": 0.395, "over": "twin"}
    sizes = {"images": 300, "eps": [0.05, 0.1, 0.2], "headline_eps": 0.1, "attacks": ["fgsm", "pgd20", "mifgsm"]}
    return {**sizes, "asked": 13205, "rows": rows, "gain": [gain]}


def options() -> dict[str, Any]:
    return {
        **{"profile": "standard", "budget": BUDGET, "seeds": SEEDS, "attackers": ["frugal", "dfme"]},
        **{"label_modes": ["probabilities", "label"], "defences": [*DEFENDED][1:], "price_per_1000": PRICE},
        **{"total": 60000, "transfer": "auto", "acceptable": {"queries_to_90": 10000, "auroc": 0.9}},
    }


def headline() -> dict[str, Any]:
    first = (
        "A copy that agrees with your model on 90% of 359 held-out images costs 2,000 queries (seeds: 2,000, 1,000, "
    )
    second = "With labels alone no attacker that we ran gets there within 3,000 queries (best: 74.2%); "
    return {
        **{"level": 0.9, "attacker": "frugal", "mode": "probabilities", "queries": [2000, 1000, 2000]},
        **{"median": 2000, "cost": 3.0, "best_agreement": {"mean": 0.9424, "sd": 0.0085, "n": 3}, "labels": None},
        "sentences": [
            first + "2,000), 3.00 at your price, by the best attacker that we ran.",
            second + "your users' answers would change by 0.041 on average.",
        ],
    }


def verdicts() -> list[dict[str, Any]]:
    price = "90% agreement at 2,000 queries; at least 10,000 were wanted"
    bell = "the worst AUROC of an attack is 0.793; at least 0.900 was wanted"
    passed = "mean L1 change 0.041; at most 0.100 was wanted"
    return [
        {"limit": "queries_to_90", "wanted": 10000, "value": 2000, "pass": False, "text": price},
        {"limit": "auroc", "wanted": 0.9, "value": 0.7931, "pass": False, "text": bell},
        {"limit": "l1", "wanted": 0.1, "value": 0.041, "pass": True, "text": passed},
    ]


def advice() -> list[dict[str, Any]]:
    words = ("Answer with labels alone.", "ModelGuard-S (epsilon 1).", "Watch labels.")
    effects = ("94.2% to 74.2% agreement", "94.2% to 74.2%, answers change by 0.055", "rings at 10.6%")
    rows = ("pareto.4", "defences.3", "detection.attacks.3")
    names = ("text", "effect", "from")
    return [dict(zip(names, each, strict=True)) for each in zip(words, effects, rows, strict=True)]


def audit() -> dict[str, Any]:
    """All of it, made anew, so that a test may change it."""
    command = "python run.py audit --teacher.checkpoint digits.safetensors --budget 3k --price-per-1000 1.5"
    made = {"command": command, "started": "2026-11-23T02:50:00Z", "wall_seconds": 1403.2, "finished": True}
    target = {"kind": "torch", "name": "digits.safetensors", "local": True, "label_mode": "probabilities"}
    target |= {"shape": [1, 8, 8], "num_classes": 10, "levels": None, "defences": [], "authorised_by": None}
    held_out = {"name": "digits test", "images": 359, "labelled": True}
    rows = [(row, mode, [curve[-1] for curve in curves]) for (row, mode), curves in CURVES.items()]
    advantage = [[(share - 0.1058) / (0.969 - 0.1058) for share in shares] for _, _, shares in rows]
    twin = {"agreement": 0.969, "accuracy": 0.97, "file": "twin.safetensors"}
    ledger = {"images": 117250, "evaluation": 4308, "transfer": 13205, "served": 134763, "cost": 202.14, "cells": 13}
    ids = [{"id": "AML.T0024.002", "name": "Extract AI Model"}, {"id": "AML.T0040", "name": "AI Model Inference"}]
    zipped = zip(rows, advantage, strict=True)
    seeds = [{"row": row, "mode": mode, "values": of, **mean_sd(of)} for (row, mode, _), of in zipped]
    spread = [{"row": row, "mode": mode, "figure": "agreement", "values": of, **mean_sd(of)} for row, mode, of in rows]
    return {
        "schema": "dfme.audit/1",
        "tool": {"dfme": "0.11.0", "torch": "2.14.1", "python": "3.11.7", "commit": "abc1234"},
        "made": {**made, "machine": "x86_64, 2 cores", "directory": "runs/audit"},
        **{"options": options(), "target": {**target, "accuracy": 0.9944, "evaluation": held_out}},
        **{"headline": headline(), "advice": advice(), "verdicts": verdicts(), "price": price()},
        "games": {"constant": 0.1058, "guess": 0.1, "twin": twin, "advantage": seeds},
        **{"defences": defences(), "utility": utility(), "pareto": pareto(), "detection": detection()},
        **{"fidelity": fidelity(), "fidelity_seeds": spread, "transfer": transfer(), "cells": cells()},
        "not_run": [
            {"what": "knockoff", "why": "no folder of images was given (--pool)"},
            {"what": "table on modelguard_s", "why": "what it answers cannot be worked out from name and options"},
        ],
        "limits": ["These are the attackers that we ran.", "Detectors were calibrated on your held-out images."],
        **{"ledger": ledger, "pictures": {}, "taxonomy": {"atlas": ids, "owasp": ["ML05:2023 Model Theft"]}},
    }

"""The sections of audit.json, each as the types of its keys."""

from typing import Any

from dfme.audits.audit.form import Added, maybe

PLACE = {"row": str, "mode": str}
OVER_SEEDS = {"mean": float | None, "sd": float | None}
SPREAD = maybe({"mean": float, "sd": float | None, "n": int})
PRICE = {
    "attacker": str | None,
    "queries": [int | None],
    "by_seed": [str],
    "best_agreement": SPREAD,
    "median": float | None,
    "cost": float | None,
    "knows": str | None,
    "balanced": Added(float),
}
INTERVAL = maybe([float])
FOLLOWED = maybe({"images": int, "agreement": float})
CALIBRATION = maybe({"value": float, "interval": [float]})

TARGET = {
    "kind": str,
    "name": str,
    "label_mode": str,
    "local": bool,
    "defences": [str],
    "authorised_by": str | None,
    "shape": list[int] | None,
    "accuracy": float | None,
    "num_classes": int | None,
    "levels": int | None,
    "place": str,
    "evaluation": {"name": str | None, "images": int | None, "labelled": bool},
}
HALVES = {
    "dataset": str,
    "sha256": str,
    "scored": int,
    "held_back": int,
}
OPTIONS = {
    "attackers": [str],
    "label_modes": [str],
    "defences": [str],
    "profile": str,
    "transfer": str,
    "seeds": [int],
    "budget": int,
    "total": int | None,
    "price_per_1000": float | None,
    "acceptable": dict[str, float],
    "keep_below": float | None,
    "per": str,
}
QUOTA = {
    "keep_below": float,
    "best": float,
    "per": str,
    "attacker": str,
    "cell": str,
    "images": int,
    "open": bool,
    "checked": maybe({"cell": str, "agreement": float, "holds": bool}),
    "lines": dict[str, str],
    "text": [str],
}
CONTROL = {
    "source": str,
    "version": str,
    "date": str,
    "control": str,
    "asks": str,
    "figure": str | None,
    "dir": str | None,
}
HEADLINE = {
    **PRICE,
    "level": float,
    "mode": str,
    "sentences": [str],
    "labels": maybe({**PRICE, "l1_mean": float | None}),
    "like": [{**PRICE, "mode": str}],
}
VERDICT = {
    "limit": str,
    "text": str,
    "wanted": float,
    "value": float | None,
    "pass": bool | None,
}
LINE = {
    **PLACE,
    **OVER_SEEDS,
    "agreement": [float | None],
    "interval": INTERVAL,
    "cells": [str],
    "has_images": bool,
    "budget": int,
    "knows": str | None,
    "agreement_balanced": Added([float | None]),
    "balanced": Added(float),
    "state": str,
    "reason": str,
    "queries_to": dict[str, list[int | None]],
    "cost_to_90": float | None,
}
ADVANTAGE = {**PLACE, **OVER_SEEDS, "values": [float | None]}
TWIN = maybe({"agreement": float, "accuracy": float | None, "file": str})
ATTACKER = {
    "answers": str,
    "agreement": SPREAD,
    "score": SPREAD,
    "remarks": [str],
    "cells": [str],
}
DEFENCE = {
    "defence": str,
    "best": str | None,
    "best_score": SPREAD,
    "to_label_only": float | None,
    "balanced": Added(float),
}
BILL = {
    "row": str,
    "defence": str,
    "states": dict[str, str],
    "state_mb": float | None,
    "held_out": dict[str, Any],
    "corrupted": dict[str, Any],
    "data_free": dict[str, Any],
    "ms": dict[str, Any],
}
POINT = {
    "name": str,
    "kind": str,
    "agreement": float,
    "dominated": bool,
    "l1_mean": float | None,
    "accuracy_drop": float | None,
    "balanced": Added(float),
}
DETECTOR = {
    "name": str,
    "statistic": str,
    "threshold": float,
    "memory_mb": float,
}
STREAM = {
    "stream": str,
    "detector": str,
    "per_10000": float,
    "per_10000_upper": float,
    "sessions": int,
    "units": int,
    "sessions_with_alarm": int,
    "queries": int,
    "alarms": int,
}
WATCHED = {
    **PLACE,
    "cell": str,
    "defence": str,
    "detector": str,
    "seed": int,
    "images": int,
    "first_alarm": int | None,
    "largest": float | None,
    "largest_600": float | None,
    "agreement_at_alarm": float | None,
}
AUROC = {
    "row": str,
    "detector": str,
    "stream": str,
    "auroc": float,
    "interval": [float],
    "attack_sessions": int,
    "benign_sessions": int,
}
DETECTION = {
    "session": int,
    "calibration_images": int,
    "measuring_images": int,
    "left_out": dict[str, str],
    "detectors": [DETECTOR],
    "benign": [STREAM],
    "attacks": [WATCHED],
    "auroc": [AUROC],
    "benign_largest": dict[str, dict[str, list[float]]],
}
CELL = {
    **PLACE,
    "name": str,
    "dir": str,
    "defence": str,
    "answers": str,
    "state": str,
    "reason": str,
    "seed": int,
    "budget": int,
    "spent": int | None,
    "requests": int | None,
    "agreement": float | None,
    "steps_seconds": float | None,
    "cost": float | None,
    "agreement_balanced": Added(float),
    "interval": INTERVAL,
    "curve": [[float]],
    "alarms": dict[str, int | None],
    "config_hash": str | None,
}
OF_CLASS = {
    "class": int,
    "images": int,
    "name": str,
    "agreement": float | None,
}
FIDELITY = {
    **PLACE,
    "cell": str,
    "seed": int,
    "images": int,
    "agreement": float,
    "interval": INTERVAL,
    "agreement_balanced": Added(float),
    "top3_equal": float | None,
    "kendall_tau": float | None,
    "kl": float | None,
    "l1": float | None,
    "per_class": [OF_CLASS],
    "table": [[int]],
    "where_wrong": maybe({"images": int, "same": int, "interval": INTERVAL}),
    "teacher_ece": CALIBRATION,
    "clone_ece": CALIBRATION,
    "procedural": FOLLOWED,
    "adversarial": FOLLOWED,
}
FOOLED = {
    "source": str,
    "kind": str,
    "attack": str,
    "agreement": float | None,
    "images": int,
    "interval": [float],
    "eps": float,
    "success": float,
}
TRANSFER = {
    "images": int,
    "asked": int,
    "eps": [float],
    "headline_eps": float,
    "attacks": [str],
    "rows": [FOOLED],
    "gain": [
        {
            "source": str,
            "attack": str,
            "over": str,
            "eps": float,
            "gain": float,
        }
    ],
}
RECOGNISED = {
    **PLACE,
    "cells": [str],
    "recognised": [bool],
    "auroc": float,
    "matches": [float],
    "e_values": [float],
}
RECOGNITION = {
    "probes": int,
    "p_reference": float,
    "references": [float],
    "rows": [RECOGNISED],
}
DIFFERENCES = {
    "row": str,
    "images": int,
    "differ": int,
    "shown": [{"image": str, "model": str, "clone": str}],
}

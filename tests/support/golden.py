"""Golden runs: every kind of run at a small size, to show that a change of the code changes no number.

    python tests/support/golden.py record OUT [--tree CHECKOUT] [--only NAME,NAME]
    python tests/support/golden.py compare OUT_BEFORE OUT_AFTER

``record`` runs ``run.py`` of a checkout in OUT, two runs at a time. ``compare`` names every difference
between two recorded folders in students, ledgers and JSON figures; times, dates, versions, paths and file
digests are left out. Both folders must come from the same machine, since other processors round otherwise.
That a run resumed or served ends as any other is proven in tests/run and tests/teachers/serve.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors import safe_open

SMALL = "--teacher.checkpoint {tree}/teachers/checkpoints/digits.safetensors --evaluation.dataset digits"
SMALL += (
    " --student.arch cnn_small --student.steps 60 --budget 1500 --method.batch-size 64 --evaluation.points 3"
)
FRUGAL = "--recipe frugal --budget 600 --student.steps 120"
METHODS = ("dfme", "maze", "disguide", "dual_students", "dfms", "knockoff", "static", "procedural")
GRADIENTS = {"dfme", "maze"}
RUNS = {f"{method}_soft": f"--method {method} {SMALL}" for method in METHODS}
RUNS |= {
    f"{method}_hard": f"--method {method} {SMALL} --teacher.label-mode label"
    for method in METHODS
    if method not in GRADIENTS
}
RUNS |= {
    "default": "--budget 4k --student.steps 200",
    "paper": "--config {tree}/configs/digits_paper.yaml --budget 6k",
    "synthetic_gradients": "--config {tree}/configs/digits_dni.yaml --budget 6k",
    "prior_guided": f"--method dfme {SMALL} --estimator.kind prior_guided",
    "frugal_soft": FRUGAL,
    "frugal_hard": f"{FRUGAL} --teacher.label-mode label",
    "auto_8bit": f"--method dfme {SMALL} --budget 4k --estimator.kind auto --teacher.levels 256",
    "defended": f"{FRUGAL} --teacher.defences reverse_sigmoid:beta=0.7 --answers.recover table"
    " --answers.knows reverse_sigmoid:beta=0.7",
    "watched": f"{FRUGAL} --teacher.watch pairs,sequential --teacher.benign digits",
    "shapes": "--config {tree}/configs/shapes.yaml --budget 3k --student.steps 60",
    "replay_on_disk": f"--method static {SMALL} --student.steps 0 --student.replay-steps 2 "
    "--student.replay-store disk",
    "comparison": "compare --config {tree}/configs/compare_small.yaml --budgets 1k --student-steps 60 "
    "--seeds 0",
    "audit": "audit --budget 400 --total 40k",
}
CHANGING = re.compile(
    r"second|time|_at$|^at$|date|version|started|finished|elapsed|hours|rate|path|directory|host|process|pid|memory"
    r"|check$|threads|commit|command|torch|python|platform|machine|device|digest|sha|size|run_dir|config_hash|^out$|url|port|^ended$|^run$|^ms|_ms$"
)
"""Keys of JSON whose values differ from run to run, or from checkout to checkout."""


def start(name: str, out: Path, tree: Path) -> int:
    """``run.py`` of a checkout in the folder ``out``, with ``--out name``; its exit code."""
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
    command = [sys.executable, str(tree / "run.py"), *RUNS[name].format(tree=tree).split(), "--out", name]
    with (out / f"{name}.txt").open("ab") as log:
        return subprocess.call(command, cwd=out, env=environment, stdout=log, stderr=log)


def record(out: Path, tree: Path, only: set[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    names = [name for name in RUNS if not only or name in only]
    with ThreadPoolExecutor(2) as pool:
        for name, code in zip(names, pool.map(lambda name: start(name, out, tree), names), strict=True):
            print(f"{name}: {code or 'done'}")


def figures(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a JSON value with its address, but for those that change by themselves."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if not CHANGING.search(name):
                yield from figures(inner, f"{key}.{name}")
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from figures(inner, f"{key}[{place}]")
    else:
        yield key, value


def facts(path: Path) -> dict[str, Any]:
    """What one recorded file says: digests of tensors, or leaves of its JSON."""
    if path.suffix == ".safetensors":
        with safe_open(path, framework="np") as file:
            names = sorted(file.keys())
            return {name: hashlib.sha256(file.get_tensor(name).tobytes()).hexdigest() for name in names}
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    return dict(figures([json.loads(line) for line in lines]))


def files(out: Path) -> set[Path]:
    kinds = tuple(
        "student*.safetensors ledger.jsonl summary.json comparison.json audit.json watch.jsonl".split()
    )
    return {path.relative_to(out) for kind in kinds for path in out.rglob(kind)}


def compare(before: Path, after: Path) -> int:
    differences = 0
    for file in sorted(files(before) | files(after)):
        one, other = (facts(out / file) if (out / file).exists() else {} for out in (before, after))
        for key in sorted(one.keys() | other.keys()):
            if one.get(key) != other.get(key):
                print(f"{file}: {key}: {one.get(key)!r} -> {other.get(key)!r}")
                differences += 1
    print(f"{len(files(after))} files, {differences} differences")
    return int(differences > 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[2])
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if options.action == "compare":
        return compare(*options.folders)
    record(options.folders[0].resolve(), options.tree.resolve(), set(filter(None, options.only.split(","))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

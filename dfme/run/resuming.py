"""What a resumed run is held to: the settings, the teacher's files, the adapter and the threads that it began with."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dfme.config.settings import Job
from dfme.config.values import flatten
from dfme.config.yaml_files import load_yaml, parse_yaml
from dfme.errors import UserError
from dfme.oracle.ledger import Ledger
from dfme.oracle.ledger_log import ledger_facts, require_same_teacher
from dfme.run.job import differing_keys

MAX_THREADS = 1_024
"""What a ledger may ask for."""


PLANNED = (
    "since --student.steps are planned over the run's own budget, without --student.rounds, start a new run, or train "
    "again on what is paid for: run.py retrain"
)
"""What to do in place of giving such a run a larger budget."""


def require_same_run(job: Job, run_dir: Path, files: Mapping[str, str], option: str) -> None:
    """UserError, with the keys, where the run on record was started with values that decide another result.

    ``files``: digests of the teacher's files, which ``option`` names. They may lie elsewhere now; what is in them may
    not differ.
    """
    config = run_dir / "config.yaml"
    keys = differing_keys(load_yaml(config, own=True), job)
    if recorded := ledger_facts(run_dir / "ledger.jsonl").get("files"):
        require_same_teacher({"files": recorded}, {"files": files})
        keys = [key for key in keys if key.removeprefix("teacher.") not in (*files, option)]
    if keys:
        planned = f"; {PLANNED}" if "budget" in keys and job.config.student.is_planned else ""
        raise UserError(
            f"--resume: this run was started with other values of {', '.join(keys)} (see {config}); "
            f"leave those flags out, or start a new run in another --out{planned}"
        )


def take_up_threads(ledger: Ledger, device: torch.device) -> list[str]:
    """Begin a stretch, on a CPU with as many threads as the first: its sums' last bits depend on it. A line to say."""
    now = torch.get_num_threads()
    own = ledger.stretches[0]["threads"] if ledger.stretches else now
    differs = device.type == "cpu" and own != now
    if differs and 1 <= own <= MAX_THREADS:
        torch.set_num_threads(own)
    ledger.begin(torch.get_num_threads())
    if not differs:
        return []
    how = f"this stretch takes {own}, too" if torch.get_num_threads() == own else "the last bits of the copy may differ"
    return [f"threads: the run was begun with {own} threads of torch, this process had {now}; {how}"]


def changed_source(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> list[str]:
    """A line where the module of somebody's own teacher is not the one that the run began with."""
    old, new = ((facts or {}).get("source") for facts in (before, now))
    if not isinstance(old, dict) or not isinstance(new, dict) or old == new:
        return []
    shown = [f"{str(each.get('file'))[:80]!r} (sha256 {str(each.get('sha256'))[:12]!r})" for each in (old, new)]
    return [f"teacher: {shown[0]} is now {shown[1]}; if its answers are others, start a new run"]


def require_same_adapter(kept: Path, text: str) -> None:
    """UserError, with the first key that differs, if the adapter in use says something else than the run's copy."""
    before, after = dict(flatten(load_yaml(kept), ())), dict(flatten(parse_yaml(text), ()))
    for key in {**before, **after}:
        if before.get(key) != after.get(key):
            digests = [hashlib.sha256(each).hexdigest()[:12] for each in (kept.read_bytes(), text.encode())]
            raise UserError(
                f"--resume: this run was started with another adapter: {key} was {str(before.get(key))[:80]!r} (now "
                f"{str(after.get(key))[:80]!r}), sha256 as read {digests[0]} (now {digests[1]}); resume with the "
                "adapter as it was, or start a new run in another --out"
            )

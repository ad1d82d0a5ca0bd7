"""Digests of the images that a run takes from files: these may move until it is resumed, not
change.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from dfme.config.settings import Job
from dfme.data import ImageSet
from dfme.errors import Ref, UserError, say
from dfme.files import write_text
from dfme.queries.names import PROCEDURAL
from dfme.report.summary_file import read_object
from dfme.run.idle_options import POOLS

FILE = "data.json"

ROOTS = {"evaluation.dataset": ("evaluation.root",)} | {
    f"method.{pool}": ("method.root",) for pool in POOLS
}
"""Keys that name images, with the keys that say where those of torchvision lie."""


def digests_of(job: Job, data: ImageSet | None, pool: object) -> dict[str, str]:
    """SHA-256 of the images on which students are scored, and of the pool, by the keys that name
    them.
    """
    digests = {} if data is None else {"evaluation.dataset": data.digest}
    for name in POOLS:
        named = getattr(job.method_config, name, None)
        digest = getattr(pool, "digest", "")
        if named not in (None, PROCEDURAL) and digest:
            digests[f"method.{name}"] = digest
    return digests


def digests_on_record(run_dir: Path) -> dict[str, str]:
    """The digests that a run wrote down when it began; none of a run from before they were."""
    held = read_object(run_dir / FILE)
    return {key: text for key, text in held.items() if key in ROOTS and isinstance(text, str)}


def may_have_moved(run_dir: Path) -> set[str]:
    """Keys whose values may differ, since what they name is held to its digest."""
    recorded = digests_on_record(run_dir)
    return {name for key in recorded for name in (key, *ROOTS[key])}


def require_recorded(run_dir: Path, now: Mapping[str, str], option: str = "resume") -> None:
    """UserError about this option where images are not those on record; none on record may
    be any.
    """
    differing = [
        f"{key}: images of sha256 {digest[:12]} (now {now[key][:12] if key in now else 'none'})"
        for key, digest in digests_on_record(run_dir).items()
        if now.get(key) != digest
    ]
    if differing:
        raise UserError(
            say(
                "this run was started with other values of {}; name the images of then, wherever "
                "they lie now, or start a new run in another {out}",
                ", ".join(differing),
            ),
            about=Ref(option),
        )


def settle_images(run_dir: Path, now: Mapping[str, str]) -> None:
    """Hold the images to those on record, and put on record what is not. UserError where they are
    others.
    """
    require_recorded(run_dir, now)
    if digests_on_record(run_dir) != dict(now):
        write_text(run_dir / FILE, json.dumps(dict(now), indent=2) + "\n")

"""What wandb's own environment variables say of a run's tracking."""

from __future__ import annotations

import os

WANDB_MODES = {"online": "online", "offline": "offline", "dryrun": "offline", "disabled": "off"}


def wandb_environment(mode: object = "off") -> dict[str, str]:
    """What wandb's own variables say of its options. They change a file's ``mode`` and never turn tracking on."""
    names = {"project": "PROJECT", "entity": "ENTITY", "name": "NAME", "group": "RUN_GROUP", "tags": "TAGS"}
    found = {name: text for name, end in names.items() if (text := os.environ.get(f"WANDB_{end}"))}
    if mode in ("offline", "online") and (how := WANDB_MODES.get(os.environ.get("WANDB_MODE", ""))):
        found["mode"] = how
    return found

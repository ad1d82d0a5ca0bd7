"""Settings of tracking in Weights & Biases, and wandb's own variables."""

import os
from typing import Literal

from pydantic.dataclasses import dataclass

from dfme.config.fields import (
    CONFIG,
    Basic,
)


@dataclass(frozen=True, config=CONFIG)
class WandbConfig:
    """Tracking in Weights & Biases, beside the run's own files."""

    mode: Basic[Literal["off", "offline", "online"]] = "off"
    """off, offline, or online (falls back to offline where there is no key or no network)"""
    project: str = "dfme"
    """wandb project; the variable WANDB_PROJECT beats a file, and a flag beats both; so for the
    others
    """
    entity: str | None = None
    """wandb user or team"""
    name: str | None = None
    """name of the run; none: its directory's"""
    group: str | None = None
    """group of the run"""
    tags: tuple[str, ...] = ()
    """tags of the run"""


def wandb_environment(mode: object = "off") -> dict[str, str]:
    """Read wandb's own variables. They change a file's ``mode`` and never turn tracking on."""
    names = {
        "project": "PROJECT",
        "entity": "ENTITY",
        "name": "NAME",
        "group": "RUN_GROUP",
        "tags": "TAGS",
    }
    variables = {name: os.environ.get(f"WANDB_{end}", "") for name, end in names.items()}
    settings = {name: text for name, text in variables.items() if text}
    modes = {"online": "online", "offline": "offline", "dryrun": "offline", "disabled": "off"}
    if mode in ("offline", "online") and (how := modes.get(os.environ.get("WANDB_MODE", ""))):
        settings["mode"] = how
    return settings

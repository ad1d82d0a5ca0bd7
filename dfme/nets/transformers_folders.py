"""Folders of Hugging Face's transformers: their models, from local files and safetensors alone."""

import importlib
import math
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dfme.config.imports import blaming
from dfme.errors import UserError
from dfme.nets.files import of_bounded_size, require_as_large
from dfme.nets.model_folders import CONFIG, WEIGHTS, read_config
from dfme.nets.safetensors_file import plain_metadata, shapes_of


def load_model(folder: Path, auto: Any, described: Any = None) -> tuple[Any, list[str]]:
    """A model of the class ``auto`` in fp32, and the tensors that the weights lack.

    ``described``: the description to go by in place of the folder's. The caller's random state is
    as it was.
    """
    failing = blaming(f"{folder}: transformers cannot load it", UserError, one_line)
    with (
        failing,
        torch.random.fork_rng(devices=[]),
        of_bounded_size(),
        silent(),
        _plain_metadata(folder) as readable,
    ):
        model, loaded = auto.from_pretrained(
            str(readable),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            config=described,
        )
    return model.float(), sorted(loaded["missing_keys"])


def description_of(folder: Path) -> Any:
    """transformers' own description of the folder's model."""
    config = importlib.import_module("transformers.models.auto.configuration_auto").AutoConfig
    return config.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def require_room(folder: Path, auto: Any, described: Any = None) -> None:
    """UserError for a model that its weights do not fill, before memory is taken for it."""
    shapes = [shape for path in sorted(folder.glob("*.safetensors")) for shape in shapes_of(path)]
    longest = max((max(shape, default=0) for shape in shapes if math.prod(shape)), default=0)
    labels = read_config(folder).get("num_labels")
    if isinstance(labels, int) and labels > longest:
        raise UserError(
            f"{folder / CONFIG}: has {labels:,} labels, but no tensor of the weights is so long"
        )
    failing = blaming(f"{folder}: transformers cannot load it", UserError, one_line)
    with failing, torch.random.fork_rng(devices=[]), of_bounded_size(), silent():
        described = description_of(folder) if described is None else described
        try:
            with torch.device("meta"):
                outline = auto.from_config(described)
        except (NotImplementedError, RuntimeError) as error:
            if "meta" in str(error):  # older versions read numbers from a network without memory
                return
            raise
    require_as_large(outline, shapes, source=f"{folder / CONFIG}")


@contextmanager
def _plain_metadata(folder: Path) -> Iterator[Path]:
    """The folder, or a copy of it if its weights have metadata that the safetensors library
    refuses.
    """
    if not (folder / WEIGHTS).is_file():  # they are in parts
        yield folder
        return
    with plain_metadata(folder / WEIGHTS) as plain:
        if plain.parent != folder:
            shutil.copy(folder / CONFIG, plain.parent)
        yield plain.parent


@contextmanager
def silent() -> Iterator[None]:
    """transformers without its bars, log lines and warnings; the settings are as they were on
    exit.
    """
    log = importlib.import_module("transformers.utils.logging")
    level = log.get_verbosity()
    bars = log.is_progress_bar_enabled()
    try:
        log.set_verbosity(log.CRITICAL)
        log.disable_progress_bar()
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def one_line(error: BaseException) -> str:
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:300]

"""Model folders of Hugging Face's transformers and of timm: their names, and JSON that is hostile.

No torch here: what such a folder says is checked before anything is loaded.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from dfme.errors import UserError
from dfme.files import open_file

LARGEST = sys.float_info.max
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PROCESSOR = "preprocessor_config.json"
PROCESSORS = "processor_config.json"  # of newer versions, with the image processor inside

MAX_SIZE = 1_000_000  # of a layer, or of how many there are of something
MAX_CONFIG_BYTES = 10_000_000  # an index of weights names every tensor of a large model

NOTHING = re.compile("(?!)")
ATTENTION = re.compile("eager|sdpa")
FETCHING = dict.fromkeys(
    ("auto_map", "quantization_config", "backbone", "experts_implementation"), NOTHING
)
FETCHING |= dict.fromkeys(("attn_implementation", "_attn_implementation"), ATTENTION)
FETCHING["model_type"] = re.compile("(?!timm).*")
"""What can make transformers import, fetch or open something else, and the values that do not."""


def require_plain(config: Any, source: Path | str) -> None:
    """UserError for a description of transformers' that names code or weights of others."""
    inside: list[Any] = [config]
    for part in inside:
        if isinstance(part, dict | list):
            inside.extend(part.values() if isinstance(part, dict) else part)
        for name, harmless in FETCHING.items() if isinstance(part, dict) else ():
            if name in part and not (
                isinstance(part[name], str) and harmless.fullmatch(part[name])
            ):
                raise UserError(f"{source}: asks for code or weights of others, never done: {name}")


def read_config(folder: Path, name: str = CONFIG) -> dict[str, Any]:
    """A folder's JSON object. UserError where it is missing or is none."""
    path = folder / name
    try:
        with open_file(path) as file:
            text = file.read(MAX_CONFIG_BYTES + 1)
        if len(text) > MAX_CONFIG_BYTES:
            raise ValueError(f"it is longer than {MAX_CONFIG_BYTES:,} bytes")
        value = json.loads(text, parse_int=sized if name != INDEX else int)
    except OSError as error:
        raise UserError(
            f"{path}: expected a model folder with {name}: {error.strerror or error}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: expected the JSON of a model, but {_line(error)}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def sized(text: str) -> int:
    """A whole number of a model's description, which may be a size or a count of anything."""
    if len(text) > 1 + len(str(MAX_SIZE)) or abs(int(text)) > MAX_SIZE:
        raise ValueError(
            f"{text[:20]} is too large for anything in a model; the largest is {MAX_SIZE:,}"
        )
    return int(text)


def numbers(value: Any, what: str) -> tuple[float, ...]:
    """One number, or a list of them, out of a configuration. UserError for anything else."""
    values = value if isinstance(value, list) else [value]
    if values and all(
        isinstance(number, int | float) and -LARGEST <= number <= LARGEST for number in values
    ):
        return tuple(map(float, values))
    raise UserError(f"{what}: expected finite numbers, got {str(value)[:80]}")


def positive(value: Any) -> int | None:
    """A positive whole number out of a configuration; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _line(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:300]

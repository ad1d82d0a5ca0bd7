"""The names in the wheel's file of EfficientNet-Lite0, and timm's for the same tensors.

The file counts the 16 blocks through, timm counts them within seven stages. A block of the file
widens (``_expand_conv``, absent in the first), filters (``_depthwise_conv``) and narrows
(``_project_conv``), each with a batch normalisation after it; timm numbers the layers of a block.
"""

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

STAGES = (1, 2, 2, 3, 3, 4, 1)
"""Blocks of each stage: Table 1 of Tan and Le, EfficientNet, ICML 2019."""

OUTSIDE = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}

FIRST = {  # the only block that does not widen
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn1",
    "_project_conv": "conv_pw",
    "_bn2": "bn2",
}
WIDENING = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
BLOCK = re.compile(r"_blocks\.(\d{1,2})\.(\w+)\.(\w+)")
PLACES: list[str] = []
for stage, count in enumerate(STAGES):
    PLACES += [f"{stage}.{block}" for block in range(count)]


def is_wheels(names: Iterable[str]) -> bool:
    """True for names as the wheel's file has them."""
    return {"_conv_stem.weight", "_blocks.0._depthwise_conv.weight"} <= set(names)


def timm_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under timm's names; a name that the rule does not know stays as it is."""
    return {_renamed(name): value for name, value in state.items()}


def _renamed(name: str) -> str:
    layer, _, tensor = name.rpartition(".")
    if layer in OUTSIDE:
        return f"{OUTSIDE[layer]}.{tensor}"
    match = BLOCK.fullmatch(name)
    if match is None or int(match[1]) >= len(PLACES):
        return name
    number = int(match[1])
    layers = WIDENING if number else FIRST
    if match[2] not in layers:
        return name
    return f"blocks.{PLACES[number]}.{layers[match[2]]}.{match[3]}"

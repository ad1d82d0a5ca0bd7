"""timm's classifiers by their own names, ``timm:resnet18``: architectures alone, with fresh weights and no network."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dfme.errors import UserError
from dfme.nets.torchvision_nets import check_size, first_line, shape_text
from dfme.spec import Shape

if TYPE_CHECKING:
    from torch import nn

PREFIX = "timm:"


@functools.cache
def timm_names() -> tuple[str, ...]:
    """Names of timm's classifiers, read from its source files without importing it; empty without it."""
    found = importlib.util.find_spec("timm")
    folders = (found and found.submodule_search_locations) or ()
    texts = [file.read_text("utf-8") for folder in folders for file in sorted(Path(folder, "models").glob("*.py"))]
    return tuple(name for text in texts for name in re.findall(r"^@register_model\n(?:@.*\n)*def (\w+)\(", text, re.M))


def check_timm(name: str) -> None:
    """UserError unless timm is there and has an architecture of this name: one with a scheme it would fetch."""
    names = timm_names()
    if not names:
        raise UserError(f"arch {name[:80]}: needs timm, which is not installed; pip install 'dfme[timm]'")
    if name.removeprefix(PREFIX) not in names:
        near = difflib.get_close_matches(name.removeprefix(PREFIX).partition(".")[0], names, n=1)
        hint = f"; did you mean {PREFIX}{near[0]}?" if near else ""
        raise UserError(
            f"arch: expected {PREFIX}NAME of an architecture of timm, without a tag, got {name[:80]!r}{hint}"
        )


def timm_net(name: str, shape: Shape, num_classes: int) -> nn.Module:
    """The classifier for images of this shape; one that is built for a size, as most transformers, is built for it.

    Raises UserError for a size the architecture cannot take, and where timm cannot be imported.
    """
    try:
        import timm
    except (ImportError, RuntimeError) as error:
        raise UserError(f"arch {name}: timm cannot be imported: {first_line(error)}") from error
    plain = name.removeprefix(PREFIX)
    default = timm.get_pretrained_cfg(plain)
    sized: dict[str, Any] = {"img_size": shape[1:]} if default is not None and default.fixed_input_size else {}
    try:
        net: nn.Module = timm.create_model(plain, pretrained=False, num_classes=num_classes, in_chans=shape[0], **sized)
    except NotImplementedError:  # of a net that cannot be built without memory, where that was tried
        raise
    except Exception as error:  # a size that does not fit can raise anything at all
        raise UserError(f"arch {name}: does not take images of {shape_text(shape)}: {first_line(error)}") from error
    check_size(name, shape, net)
    return net

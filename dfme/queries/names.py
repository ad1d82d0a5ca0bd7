"""The names of query sources, and what can be said of them before anything heavy is loaded: no
torch here.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from dfme.config.messages import did_you_mean, unknown_choice
from dfme.errors import Ref, UserError

# name -> "module:function"; a function takes (count, spec, rng) and draws so many images within the
# bounds.
PROGRAMS: dict[str, str] = {
    "leaves": "dfme.queries.drawing:draw_leaves",
    "strokes": "dfme.queries.drawing:draw_strokes",
    "pen": "dfme.queries.drawing:draw_pen",
    "text": "dfme.queries.textures:draw_text",
    "textured": "dfme.queries.textures:draw_textured",
    "noise": "dfme.queries.textures:draw_noise",
    "gradients": "dfme.queries.drawing:draw_ramps",
    "generators": "dfme.queries.textures:draw_generators",
}

# queries.domain -> the programs that it sets; docs/results/real_size.md has what each is worth.
DOMAINS: dict[str, tuple[str, ...]] = {
    "handwriting": ("pen",),
    "text": ("text",),
    "things": ("textured",),
}
WORTH_NOTHING = ("things",)
"""Domains whose programs were worth nothing on the model of strangers that was measured
(docs/methods.md).

They can be asked for, and no profile of an audit counts them as knowledge.
"""

PROCEDURAL = "procedural"  # the pool without an end: images of programs
DOWNLOAD = Ref("method.download", True)


def check_programs(names: Iterable[str]) -> None:
    """Raise a UserError for a name that is no program's, with the nearest, and for no name at
    all.
    """
    names = tuple(names)
    if not names:
        expected = f"expected at least one of {', '.join(PROGRAMS)}, got none"
        raise UserError(expected, about="programs")
    for name in names:
        if name not in PROGRAMS:
            raise UserError(unknown_choice("program", name, PROGRAMS), about="programs")


def check_pool(name: str, root: str = "datasets", *, download: bool = False) -> None:
    """UserError for an unknown name, missing files and, without ``download``, a set not under
    ``root``.
    """
    from dfme.data import DATASETS, check_dataset, whole_name
    from dfme.data.class_names import require_names
    from dfme.data.layout import layout_of

    dataset = whole_name(name)
    require_names([name], "pool")
    path = Path(os.path.expanduser(dataset))
    if name == PROCEDURAL:
        return
    if name and path.is_dir():
        layout = layout_of(path)
        # refuses parts that nobody can choose from
        layout.pool if name == dataset else layout.test  # noqa: B018
        return
    if dataset in DATASETS or path.suffix == ".npz" or len(path.parts) > 1:
        return check_dataset(name, root, download=download, download_option=DOWNLOAD)
    choices = (PROCEDURAL, *DATASETS)
    raise UserError(
        f"expected {', '.join(choices)}, a folder of images or an .npz file, got {name!r}"
        f"{did_you_mean(name, choices)}",
        about="pool of images",
    )

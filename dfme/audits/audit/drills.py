"""The drill of an audit: what ``run.py drill`` left in its folder, read as a stranger's file, and
in sentences. No torch.
"""

import os
from pathlib import Path

from dfme.audits.audit.result import parse
from dfme.audits.drill.result import RESULT, DrillResult
from dfme.config.messages import printable
from dfme.errors import RunError, UserError
from dfme.report.run_files import read_object

FORM = "dfme.drill/1"
MAX_NAME = 200
MAX_TEXT = 800
"""Letters of a name of the file, and of its sentence, that are shown."""


def read_drill(folder: str) -> DrillResult:
    """The finished drill of a folder. UserError, in one line, for anything else."""
    named = f"--drill {printable(folder):.200}"
    content = read_object(Path(os.path.expanduser(folder)) / RESULT)
    if not content:
        raise UserError(f"{named}: expected a folder with {RESULT}, as run.py drill makes one")
    if (schema := content.get("schema")) != FORM:
        raise UserError(f"{named}: expected the schema {FORM}, got {printable(repr(schema)):.60}")
    try:
        drill = parse(DrillResult, content, RESULT, FORM)
    except RunError as error:
        fault = str(error).partition("; ")[0]
        raise UserError(f"{named}: {fault}; make the drill again") from None
    if not drill.finished:
        raise UserError(f"{named}: expected a finished drill, got one that was stopped")
    if not drill.text.strip():
        raise UserError(f"{named}: expected what the drill says, got an empty text")
    if drill.rang != (drill.images is not None):
        raise UserError(
            f"{named}: expected the images until an alarm where one rang, and none elsewhere; make "
            "the drill again"
        )
    return drill


def drill_text(drill: DrillResult) -> str:
    """What the drill found, in its own words, which say what makes them doubtful, too."""
    return f"The drill says: {printable(drill.text)[:MAX_TEXT].rstrip('.')}."


def response_text(drill: DrillResult) -> str:
    """Whether the service refused the drill's attack, and whether that followed an alarm."""
    refused = drill.refused_at
    if refused is None:
        alarm = "an alarm rang, and" if drill.rang else "no alarm rang, and"
        return f"In the drill {alarm} nothing refused the attack in {drill.images_in_all:,} images."
    when = "without an alarm"
    if drill.images is not None:
        after = refused - drill.images
        when = "as its alarm rang"
        if after:
            when = f"{abs(after):,} {'after' if after > 0 else 'before'} its alarm"
    return f"In the drill the service refused the attack after {refused:,} images, {when}."


def of_whom(drill: DrillResult, name: str) -> str:
    """Whose drill it was, beside the ``name`` of the audited model."""
    teacher = printable(drill.teacher)[:MAX_NAME]
    attack = printable(drill.attack)[:MAX_NAME]
    whose = f"The drill was an attack by {attack} on {teacher} ({printable(drill.made)[:10]})."
    if teacher == name:
        return f"{whose} The audited model has the same name."
    return (
        f"{whose} The audited model is called {name}. Whether both are one model is not known "
        "here; a drill of another one proves nothing of this one."
    )

"""What is checked of a teacher before anything heavy is loaded. No torch."""

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from dfme.config.settings import TeacherConfig
from dfme.errors import UserError
from dfme.teachers import KINDS
from dfme.teachers.owner.watch.checks import watch_problems


def check_teacher(config: TeacherConfig, options: Mapping[str, Any]) -> str:
    """Check defences, watch, and the options of a built-in kind.

    What a run is to say first, if anything. May raise UserError.
    """
    local = config.kind not in KINDS or KINDS[config.kind].is_local
    if config.defences:  # which load what reads secrets
        from dfme.teachers.owner.defences.checks import check_defences

        check_defences(config, local)
    if problems := [*watch_problems(config, local)]:
        raise UserError(*problems)
    check = KINDS[config.kind].check if config.kind in KINDS else None
    line: str | None = resolve_name(check)(config, options) if check else None
    return line or ""

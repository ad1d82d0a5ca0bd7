"""The command line: commands, their help, and how errors end. No torch until a command runs."""

import errno
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from dfme.cli.arguments import arguments_of
from dfme.cli.flags import HELP, where_it_began
from dfme.config.messages import did_you_mean, printable, shortened
from dfme.errors import DfmeError, UserError
from dfme.version import __version__

VERBS = (
    "extract",
    "estimate",
    "compare",
    "retrain",
    "train-teacher",
    "evaluate",
    "export",
    "check",
    "serve",
    "report",
    "audit",
    "utility",
    "detect",
    "verify",
)
"""The commands; extract is meant when none is named."""


def find(name: str) -> ModuleType:
    """The module of a command: SUMMARY, ``run(words)``, and INPUTS or ``options(words)``."""
    return importlib.import_module(f"dfme.cli.{name.replace('-', '_')}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the words name; its exit code is 0, 1 to 3 for our errors, 130 after
    Ctrl-C.

    Errors of ours are one line on stderr. Any other exception is a bug, and keeps its traceback.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except DfmeError as error:
        line = " ".join(str(error).split())
        # it may quote a file, and what a stranger wrote does not steer the terminal
        sys.stderr.write(f"{shortened(f'dfme: {printable(line)}')}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except OSError as error:  # a file's error names the file: this is where the output goes
        if error.errno not in (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        # the reader of a pipe has gone: stop quietly, also at the flush on exit
        if error.errno != errno.EPIPE:
            sys.stderr.write(
                f"dfme: cannot write the output: {error.strerror}; send it elsewhere, or "
                "free some space\n"
            )
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _dispatch(words: list[str]) -> int:
    if len(words) == 1 and words[0] in HELP[:2]:
        from dfme.cli.help import overview

        print(overview({name: find(name).SUMMARY for name in VERBS}))
        return 0
    if words == ["--version"]:
        print(f"dfme {__version__}")
        return 0
    named = bool(words) and not words[0].startswith("-")
    name = words.pop(0) if named else "extract"
    if name not in VERBS:
        hint = did_you_mean(name, VERBS)
        raise UserError(f"expected a command ({', '.join(VERBS)}) or a flag, got {name!r}{hint}")
    verb = find(name)
    size = os.environ.get("WORLD_SIZE", "")
    if size not in ("", "0", "1"):
        raise UserError(
            f"WORLD_SIZE: expected 1 process, got {size}; instead of torchrun, compare --engine"
        )
    if not set(HELP) & set(words):
        with where_it_began(words) as placed:
            return int(verb.run(placed))
    from dfme.cli.help import command_help

    options = (
        verb.options(words)
        if hasattr(verb, "options")
        else arguments_of(words, verb.INPUTS).in_force
    )
    print(command_help(name, verb.SUMMARY, options, everything="--help-all" in words))
    return 0

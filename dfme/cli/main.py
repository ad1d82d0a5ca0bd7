"""The command line: commands, their help, and how errors end. No torch until a command runs."""

import ctypes
import errno
import importlib
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType

from dfme.cli.arguments import arguments_of
from dfme.cli.flags import HELP, where_it_began
from dfme.config.messages import did_you_mean, expected, printable, shortened
from dfme.config.values import Option
from dfme.errors import DfmeError, UserError, flag
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
    "mark",
    "verify",
    "drill",
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
    _keep_freed_memory()
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


M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
GLIBC_DEFAULTS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")


def _keep_freed_memory() -> None:
    """Let the process keep memory that it frees, unless the environment says when glibc lets go.

    glibc gives each block above 32 MB back to the kernel, which fills it with zeros again for the
    next one. Measured: two thirds of the time of a network of 224 pixels on a CPU.
    """
    if sys.platform != "linux" or any(name in os.environ for name in GLIBC_DEFAULTS):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # which other C libraries lack
        mallopt(M_MMAP_THRESHOLD, 1 << 30)
        mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def _dispatch(words: list[str]) -> int:
    if len(words) == 1 and words[0] in HELP[:2]:
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
    options = (
        verb.options(words)
        if hasattr(verb, "options")
        else arguments_of(words, verb.INPUTS).in_force
    )
    print(command_help(name, verb.SUMMARY, options, everything="--help-all" in words))
    return 0


TITLES = {
    "": "options",
    "schedule": "schedule (learning rates)",
    "evaluation": "evaluation (what the student is scored on)",
    "answers": "answers (what an attacker who knows a defence recovers; nothing hides a client)",
    "wandb": "wandb (experiment tracking)",
    "teacher": "teacher (a module:Class of your own adds its own options)",
}

FEW = 24  # options up to which a command shows all of them
CONFIG_FILE = Option("config", str, None, "YAML file of options; flags beat it")


def command_help(command: str, summary: str, options: Iterable[Option], everything: bool) -> str:
    """Help of one command: options by group, the important ones or ``everything``."""
    listed = list(options)
    shown = [option for option in listed if option.basic or everything or len(listed) <= FEW]
    lines = [f"usage: run.py {command} {'[FLAGS]' if listed else 'RUN'}", "", summary]
    groups: dict[str, list[Option]] = {}
    for option in [CONFIG_FILE, *shown] if shown else []:
        groups.setdefault(option.key.rpartition(".")[0], []).append(option)
    for group, members in groups.items():
        lines += ["", f"{TITLES.get(group, group)}:"]
        lines += [line for option in members for line in _lines(option)]
    if len(shown) < len(listed):
        lines += ["", f"{len(listed) - len(shown)} more options: run.py {command} --help-all"]
    return "\n".join(lines)


def _lines(option: Option) -> list[str]:
    value = "; required" if option.required else f"; default: {_shown(option.default)}"
    value = "" if option.key == "config" else value
    text = f"{option.help or 'no description'} ({expected(option.type)}{value})"
    lines = textwrap.wrap(text, 102, break_on_hyphens=False)
    return [f"  {flag(option.key)}", *(f"{'':8}{line}" for line in lines)]


def _shown(default: object) -> str:
    if default is None:
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    return (
        ",".join(map(str, default)) or "empty"
        if isinstance(default, list | tuple)
        else str(default)
    )


def overview(commands: Mapping[str, str]) -> str:
    """Text of ``run.py --help``: the commands and the flags most people need."""
    from dfme.report.terminal import aligned

    listed = textwrap.indent(aligned(commands.items()), "  ")
    return f"""usage: run.py [COMMAND] [FLAGS]

Data-Free Model Extraction: how many queries does it take to clone the classifier behind an API?

commands:
{listed}

first steps:
  run.py                                            clone the embedded digits teacher
  run.py --teacher.checkpoint WEIGHTS --budget 2M   clone a network of your own
  run.py --teacher.checkpoint WEIGHTS --recipe frugal   the same with few queries
  run.py --teacher my_module:MyTeacher              clone what your own code asks
  run.py --config FILE.yaml --seed 1 --out runs/x   a recipe; flags beat it
  run.py --resume --out runs/x                      go on with an interrupted run

run.py COMMAND --help lists the flags that matter first, --help-all all of them; with --teacher or
--method, those of that one."""

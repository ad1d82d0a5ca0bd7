"""Help texts: the commands, and the options of one."""

import textwrap
from collections.abc import Iterable, Mapping

from dfme.config.messages import expected
from dfme.config.values import Option
from dfme.errors import flag

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

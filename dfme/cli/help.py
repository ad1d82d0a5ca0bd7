"""Help texts: the commands, and the options of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jsonargparse import ArgumentParser

from dfme.config.options import Option

TITLES: dict[str, str] = {
    "": "options",
    "schedule": "schedule (learning rates)",
    "student": "student",
    "evaluation": "evaluation (what the student is scored on)",
    "wandb": "wandb (experiment tracking)",
    "teacher": "teacher (a module:Class of your own adds its own options)",
    "method": "method",
    "data": "data",
}


def command_help(command: str, summary: str, options: Sequence[Option]) -> str:
    """The help of one command: its options by group, with types and defaults."""
    parser = ArgumentParser(
        prog=f"run.py {command}", usage=f"run.py {command} [FLAGS]", description=summary, add_help=False
    )
    first = parser.add_argument_group(TITLES[""])
    first.add_argument("--config", type=str, metavar="FILE", help="YAML file of options; flags beat it")
    groups = {"": first}
    for option in options:
        name = option.key.rpartition(".")[0]
        if name not in groups:
            groups[name] = parser.add_argument_group(TITLES.get(name, name))
        groups[name].add_argument(
            "--" + option.key.replace("_", "-"),
            type=option.type,
            required=option.required,
            default=None if option.required else option.default,
            help=option.help.replace("%", "%%") or "no description",
        )
    return parser.format_help()


def overview(commands: Mapping[str, str]) -> str:
    """What ``run.py --help`` says: the commands and the flags most people need."""
    width = max(map(len, commands)) + 2
    listed = "\n".join(f"  {name:{width}}{summary}" for name, summary in commands.items())
    return f"""usage: run.py [COMMAND] [FLAGS]

Data-Free Model Extraction: how many queries does it take to clone the classifier behind an API?

commands:
{listed}

first steps:
  run.py                                            clone the embedded digits teacher
  run.py --teacher.checkpoint WEIGHTS --budget 2M   clone a network of your own
  run.py --teacher my_module:MyTeacher              clone what your own code asks
  run.py --config FILE.yaml --seed 1 --out runs/x   a recipe; flags beat it
  run.py --resume --out runs/x                      go on with an interrupted run

run.py COMMAND --help lists a command's flags; with --teacher or --method, those of that one."""

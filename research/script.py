"""Help and errors of the scripts, in the form that the commands of dfme have. No torch here."""

import sys
from collections.abc import Callable, Sequence

from dfme.cli.arguments import CommandInputs, arguments_of
from dfme.cli.flags import HELP
from dfme.cli.main import command_help
from dfme.config.messages import printable
from dfme.errors import DfmeError


def run_script(
    name: str, summary: str, inputs: CommandInputs, run: Callable[[Sequence[str]], None]
) -> int:
    """Run a script on the words of the command line; the exit code is that of a command of dfme."""
    words = sys.argv[1:]

    def helped() -> None:
        if set(HELP) & set(words):
            options = arguments_of(words, inputs).in_force
            text = command_help(name, summary, options, everything="--help-all" in words)
            print(text.replace(f"run.py {name}", f"python -m research.{name}"))
        else:
            run(words)

    return reported(name, helped)


def reported(name: str, run: Callable[[], None]) -> int:
    """Run a script; what is wrong with its inputs is said in one line, as a command of dfme says
    it.
    """
    try:
        run()
    except DfmeError as error:
        message = " ".join(str(error).split())
        sys.stderr.write(f"research.{name}: {printable(message)}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0

"""``run.py train-teacher``: a teacher to practise on."""

import sys
from collections.abc import Sequence

from dfme import owner_side
from dfme.cli.arguments import CommandInputs, arguments_of
from dfme.config.messages import printable
from dfme.owner_side import TrainTeacherConfig
from dfme.run.checks import dataset_problems, net_problems

SUMMARY = "train a teacher to practise on, and save its weights"
INPUTS = CommandInputs(TrainTeacherConfig)


def run(words: Sequence[str]) -> int:
    """Train, and print where the weights are."""
    arguments = arguments_of(words, INPUTS)
    config = arguments.config
    data = dataset_problems("data.name", config.data.name, config.data.root, config.data.download)
    arguments.finish([*data, *net_problems("arch", config.arch)])
    owner_side.check_training(config)
    trained = owner_side.train(config, show_epoch)
    accuracy = trained.card.accuracy
    scored = "" if accuracy is None else f"accuracy {accuracy:.2%} on the test part, "
    print(f"{printable(str(trained.path))}: {scored}{trained.seconds:.0f} s")
    return 0


def show_epoch(metrics: dict[str, float]) -> None:
    """One line per epoch on stderr, and more of a long one; on a terminal it is written over the
    last one.
    """
    named = {
        "loss": "loss {:.4f}",
        "train_accuracy": "train {:.1%}",
        "test_accuracy": "test {:.1%}",
    }
    parts = [text.format(metrics[name]) for name, text in named.items() if name in metrics]
    line = f"epoch {metrics['epoch']:.0f}/{metrics['epochs']:.0f}  {'  '.join(parts)}"
    if "step" in metrics:
        from dfme.report.console import duration

        epochs = metrics["epoch"] - 1 + metrics["step"] / metrics["steps"]
        remaining = metrics["seconds"] * (metrics["epochs"] / max(epochs, 1e-9) - 1)
        line += f"step {metrics['step']:.0f} of {metrics['steps']:.0f}  {duration(remaining)} left"
    line += f"  {metrics['seconds']:.0f} s"
    last = "\n" if metrics["epoch"] >= metrics["epochs"] else ""
    sys.stderr.write(f"\r{line:<78}{last}" if sys.stderr.isatty() else f"{line}\n")
    sys.stderr.flush()

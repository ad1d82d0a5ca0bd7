"""The scripts as they are started: their help, and a mistake in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def started(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


@pytest.mark.integration
@pytest.mark.parametrize("name", ["gradients", "bench"])
def test_a_script_has_help_and_refuses_a_mistake_in_one_line(name: str) -> None:
    helped = started(f"research.{name}", "--help")
    assert helped.returncode == 0, helped.stderr
    assert helped.stdout.startswith(f"usage: python -m research.{name} [FLAGS]\n")
    refused = started(f"research.{name}", "--devise", "cpu")
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"research.{name}: --devise: unknown flag")
    assert refused.stderr.count("\n") == 1

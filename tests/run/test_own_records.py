"""config.yaml is the run's own record: one that was changed is not resumed from, and nothing is asked."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from small_runs import BUDGET, SMALL, Metered, clone
from tables import all_hold

from dfme.cli.main import main
from dfme.config.yaml_files import load_yaml, sealed
from dfme.errors import UserError

pytestmark = pytest.mark.usefixtures("here")


def test_its_last_line_is_the_digest_of_all_above_it(whole: Path) -> None:
    *above, last = (whole / "config.yaml").read_bytes().splitlines(keepends=True)
    assert last.decode() == f"# sha256 of the lines above: {hashlib.sha256(b''.join(above)).hexdigest()}\n"
    assert load_yaml(whole / "config.yaml", own=True) == load_yaml(whole / "config.yaml")


def is_refused(changed: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file() and path.name != "config.yaml"}
    config = run / "config.yaml"
    written = config.read_text()
    assert changed != written
    config.write_text(changed)
    try:
        assert main(["--resume", "--out", str(run), "--budget", "200"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(
            f"dfme: {run}/config.yaml: expected the file as the run wrote it, but it was changed since"
        )
        for way_out in ("restore it", "as flags", f"--config {run}/config.yaml"):
            assert way_out in line
    finally:
        config.write_text(written)
    after = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file() and path.name != "config.yaml"}
    assert before == after


def test_a_change_is_refused_in_one_line_and_what_was_written_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """A value, an order, a blank, a line more, a line less; and the last line itself, taken away or made up."""
    run = Path("run")
    assert main([*SMALL, "--out", "run"]) == 0
    capsys.readouterr()
    text = (run / "config.yaml").read_text()
    *above, last = text.splitlines(keepends=True)
    edited = "".join(above).replace("lr: 0.1\n", "lr: 0.2\n", 1)
    cases = [
        edited + last, text.replace("lr: 0.1", "lr:  0.1", 1), "".join([above[1], above[0], *above[2:]]) + last,
        text + "seed: 7\n", text + "\n", "".join(above[:-1]) + last, "".join(above), edited, text[:-2], text[:-1],
        "".join(above) + last.replace(last[-9:-1], "00000000"), "".join(above) + last.upper(),
        text.replace("\n", "\r\n"), text.replace("lr: 0.1", "lr: [", 1),
    ]  # fmt: skip
    all_hold(is_refused, [(case, run, capsys) for case in cases])
    assert main(["--resume", "--out", "run", "--budget", "200"]) == 0
    assert json.loads(Path("run/summary.json").read_text())["spent"] == 200
    assert main(["--resume", "--out", "run", "--budget", "300"]) == 0, "and it was written anew"


def test_it_is_still_a_recipe_for_whoever_names_it() -> None:
    assert main([*SMALL, "--out", "run"]) == 0
    text = Path("run/config.yaml").read_text()
    Path("run/config.yaml").write_text(text.replace("seed: 0", "seed: 5", 1))
    assert main(["--config", "run/config.yaml", "--out", "new"]) == 0
    assert json.loads(Path("new/summary.json").read_text())["seed"] == 5


def test_a_run_of_0_5_0_has_no_such_line_and_goes_on() -> None:
    """Neither has its ledger anything of the teacher."""
    assert main([*SMALL, "--out", "run"]) == 0
    *above, _ = Path("run/config.yaml").read_text().splitlines(keepends=True)
    lines = [json.loads(line) for line in Path("run/ledger.jsonl").read_text().splitlines()]
    old = [{name: value for name, value in line.items() if name not in ("teacher", "check")} for line in lines]
    Path("run/config.yaml").write_text("".join(above))
    Path("run/ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old))
    assert main(["--resume", "--out", "run", "--budget", "200"]) == 0
    assert "# sha256" in Path("run/config.yaml").read_text()


def test_from_python_too(whole: Path, tmp_path: Path) -> None:
    out, teacher = tmp_path / "run", Metered()
    shutil.copytree(whole, out)
    config = out / "config.yaml"
    config.write_text(config.read_text().replace("checkpoint_seconds: 60", "checkpoint_seconds: 61"))
    with pytest.raises(UserError, match="expected the file as the run wrote it"):
        clone(out, teacher, BUDGET + 20, resume=True)
    assert teacher.calls == 0


def test_a_comparisons_own_file_is_held_to_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c").mkdir()
    text = sealed("methods: [static]\nseeds: [0]\n")
    Path("c/comparison.yaml").write_text(text.replace("0", "1", 1))
    assert main(["compare", "--resume", "--out", "c"]) == 2
    assert "c/comparison.yaml: expected the file as the run wrote it" in capsys.readouterr().err

"""What README and docs show is so: tables are the code's, flags exist, and marked blocks run as printed."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from toys import LinearTeacher, make_method, make_parts

from dfme.benchmarks.audit.options import AuditConfig
from dfme.benchmarks.options import CompareConfig
from dfme.cli.check import CheckConfig
from dfme.cli.detect import DetectConfig
from dfme.cli.estimate import EstimateOptions
from dfme.cli.evaluate import EvaluateConfig
from dfme.cli.export import ExportConfig
from dfme.cli.extract import parse_extract
from dfme.cli.flags import ALIASES
from dfme.cli.main import VERBS
from dfme.cli.retrain import RetrainConfig
from dfme.config.settings import TeacherConfig
from dfme.config.values import options_of
from dfme.config.yaml_files import load_yaml
from dfme.methods import METHODS, SECTIONS
from dfme.report.metrics import METRICS
from dfme.run.checks import POOLS
from dfme.spec import ImageSpec
from dfme.teachers import KINDS
from dfme.teachers.options import ServeConfig, TrainTeacherConfig
from research.options import BenchConfig, GradientsConfig

ROOT = Path(__file__).resolve().parents[2]
RECIPES_PAGE = ROOT / "configs" / "README.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "research" / "README.md", RECIPES_PAGE]
TEXT = {page: page.read_text(encoding="utf-8") for page in PAGES}
ALL = "\n".join(TEXT.values())
RECIPES = sorted(path for path in (ROOT / "configs").glob("*.yaml") if not path.name.startswith(("compare_", "audit")))
SECONDS = 110
MARK = r"<!-- tested: (?P<section>[\w-]+)(?:, file (?P<file>\S+))? -->\n"
BLOCK = re.compile(MARK + r"```(?P<language>\w+)\n(?P<text>.*?)```", re.S)


class Block(NamedTuple):
    """A fenced block after a mark: ``<!-- tested: SECTION -->`` runs, ``, file NAME`` is saved under that name."""

    section: str
    file: str | None
    language: str
    text: str


def marked_blocks() -> list[Block]:
    """Those of all pages, README's first."""
    return [Block(*found.group("section", "file", "language", "text")) for found in BLOCK.finditer(ALL)]


def rows(first: str, text: str = ALL) -> list[list[str]]:
    """The cells of the first table whose header begins with ``first``, without header and rule."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {first} |"))
    found: list[list[str]] = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return found


def coded(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def default_method(name: str) -> Any:
    """The method with its own defaults, around a toy teacher."""
    entry = METHODS[name]
    parts = make_parts(LinearTeacher(ImageSpec((1, 8, 8))), 10**6, keeps=entry.keeps, count=entry.students)
    return make_method(name, parts, **dataclasses.asdict(entry.config()))


def test_the_two_commands_stand_there_as_they_are_run():
    lines = TEXT[ROOT / "README.md"].splitlines()
    assert len(lines) <= 200
    assert "    pip install -e . && python run.py" in lines[:10]
    assert '    pip install -e ".[dev]" && python -m pytest' in lines[:50]


def test_every_method_has_a_row_with_its_label_modes_and_its_cost():
    table = {coded(row[0])[0]: row for row in rows("Method")}
    assert list(table) == list(METHODS)
    for name, row in table.items():
        method = default_method(name)
        assert coded(row[2]) == list(method.label_modes), name
        assert f"({method.cost:,})" in row[3], name


def test_every_method_has_a_recipe_and_every_recipe_a_row():
    recipes = {path.name for path in RECIPES}
    table = rows("Recipe", TEXT[RECIPES_PAGE])
    named = {found[0]: coded(row[1])[0] for row in table if (found := re.findall(r"\[(\S+\.yaml)\]", row[0]))}
    assert set(named) == recipes
    for recipe, method in named.items():
        assert f"name: {method}\n" in re.sub(r" +#.*", "", (ROOT / "configs" / recipe).read_text(encoding="utf-8"))
    assert set(named.values()) == set(METHODS)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_understood_where_the_files_it_names_are_there(recipe):
    method = load_yaml(recipe)["method"]
    images = [f"--method.{name}=procedural" for name in POOLS if name in method]
    here = ["--teacher.checkpoint=teachers/checkpoints/digits.safetensors", "--evaluation.dataset=none", *images]
    assert parse_extract(["--config", str(recipe), *here]).method == method["name"]


def test_the_table_of_metrics_is_the_one_the_code_makes():
    assert rows("Metric") == [[f"`{name}`", metric.unit, metric.meaning] for name, metric in METRICS.items()]


def test_every_command_has_a_row():
    assert [coded(row[0])[0] for row in rows("Command")] == list(VERBS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_project_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)\)", TEXT[page])
    assert [t for t in targets if not t.startswith("https://") and not (page.parent / t).exists()] == []


def known_flags() -> set[str]:
    """Every flag there is, but those of a teacher of one's own."""
    options = [
        *options_of(EstimateOptions),
        *options_of(TeacherConfig, "teacher."),
        *(option for kind in KINDS.values() for option in options_of(kind.options, "teacher.")),
        *(option for entry in METHODS.values() for option in options_of(entry.config, "method.")),
        *(option for name, section in SECTIONS.items() for option in options_of(section, f"{name}.")),
        *options_of(GradientsConfig),
        *options_of(AuditConfig),
        *options_of(CompareConfig),
        *options_of(RetrainConfig),
        *options_of(BenchConfig),
        *options_of(EvaluateConfig),
        *options_of(CheckConfig),
        *options_of(DetectConfig),
        *options_of(ExportConfig),
        *options_of(TrainTeacherConfig),
        *options_of(ServeConfig),
    ]
    return {option.key for option in options} | {"config", "help", "help_all", "method.name", *ALIASES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_flag_that_is_named_exists(page):
    own = {"teacher.sharpness", "teacher.factor"}
    named = {flag.replace("-", "_") for flag in re.findall(r"(?<![\w-])--([a-z][\w.-]*\w)", TEXT[page])}
    assert named - known_flags() - own == set()


def in_a_folder(folder: Path) -> dict[str, str]:
    """A folder as if it were the checkout: its run.py, our python, and the project importable."""
    shutil.copy(ROOT / "run.py", folder)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run_section(section: str, folder: Path) -> str:
    """Run the section's blocks in order; what they printed."""
    environment, printed = in_a_folder(folder), ""
    for number, block in enumerate(block for block in marked_blocks() if block.section == section):
        if block.file is not None:
            (folder / block.file).write_text(block.text, encoding="utf-8")
            continue
        script = folder / f"block{number}"
        script.write_text(block.text, encoding="utf-8")
        words = ["python", str(script)] if block.language == "python" else ["bash", "-e", str(script)]
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
        printed += done.stdout
    return printed


def test_the_marked_blocks_are_the_ones_tested_here():
    assert {block.section for block in marked_blocks()} == {
        *("seam", "gradients", "checkpoint", "own-teacher", "own-parts", "python", "rehearsal", "defences"),
        "adapter",  # in tests/teachers/remote/test_adapters_page.py
    }
    assert ALL.count("<!-- tested:") == len(marked_blocks())


@pytest.mark.integration
def test_the_seam_as_printed(tmp_path):
    assert run_section("seam", tmp_path) == "288 torch.Size([48, 16])\n"


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_function_from_python_as_printed(tmp_path):
    printed = run_section("python", tmp_path)
    assert "runs/ask" in printed
    summary = json.loads((tmp_path / "runs/ask/summary.json").read_text())
    assert summary["spent"] == summary["budget"] == 10_000
    assert summary["agreement"] > 0.5


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_teacher_of_ones_own_as_printed_and_what_its_run_leaves_behind(tmp_path):
    run_section("own-teacher", tmp_path)
    summaries = [json.loads((tmp_path / "runs" / name / "summary.json").read_text()) for name in ("halves", "sharp")]
    assert [summary["method"] for summary in summaries] == ["dfme", "static"]
    assert "sharpness: 8" in (tmp_path / "runs/halves/config.yaml").read_text()
    listed = {name for row in rows("File") for name in coded(row[0])}
    found = {f"{path.name}/" if path.is_dir() else path.name for path in (tmp_path / "runs/halves").iterdir()}
    sometimes = {"checkpoint.previous.pt", "adapter.yaml", "estimate.json", "replay/", "wandb/", "wandb.json"}
    sometimes |= {"watch.jsonl"}
    assert listed - found == sometimes, "only these are not always there"
    assert found <= listed


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_method_and_networks_of_ones_own_as_printed(tmp_path):
    printed = run_section("own-parts", tmp_path)
    stripes, entropy, nets = (
        json.loads((tmp_path / "runs" / name / "summary.json").read_text()) for name in ("stripes", "entropy", "nets")
    )
    assert (stripes["method"], stripes["spent"]) == ("my_images:Stripes", 1_000)
    assert (entropy["method"], entropy["spent"]) == ("my_method:Entropy", 12_000)
    assert (nets["student_arch"], nets["spent"]) == ("my_nets:Net", 10_000)
    assert "load_student" in printed


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_the_check_auto_and_the_laboratory_as_printed(tmp_path):
    printed = run_section("gradients", tmp_path)
    assert (
        "recommended: --estimator.kind finite_difference --estimator.objective kl --estimator.space lattice" in printed
    )
    summary = json.loads((tmp_path / "runs/auto/summary.json").read_text())
    assert summary["estimator"]["space"] == "lattice"
    assert summary["spent_by_purpose"]["check"] == 224
    written = {path.suffix for path in (tmp_path / "runs/gradients").iterdir() if path.name != ".lock"}
    assert written == {".md", ".json", ".png"}


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_checkpoint_its_evaluation_and_resuming_as_printed(tmp_path):
    printed = run_section("checkpoint", tmp_path)
    assert "teacher accuracy    0.98" in printed
    summary = json.loads((tmp_path / "runs/shapes/summary.json").read_text())
    assert (summary["spent"], summary["agreement"] > 0.4) == (5_000, True), "not at chance, which is a tenth"


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_defence_its_bill_and_its_recovery_as_printed(tmp_path):
    run_section("defences", tmp_path)
    summary = json.loads((tmp_path / "runs/recovered/summary.json").read_text())
    assert summary["agreement"] > 0.6, "with the answers as they came it is below half"
    rows = json.loads((tmp_path / "runs/bill/utility.json").read_text())["rows"]
    assert [row["defence"].partition(":")[0] for row in rows] == ["none", "modelguard_w", "label"]


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_an_audit_is_rehearsed_as_printed_and_two_meters_agree(tmp_path):
    pytest.importorskip("uvicorn")
    serve, rest = (block.text for block in marked_blocks() if block.section == "rehearsal")
    environment = in_a_folder(tmp_path)
    with subprocess.Popen(
        shlex.split(serve.replace("8080", "0")), cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            told = server.stdout.readline()
            (url,) = set(re.findall(r"http://127\.0\.0\.1:\d+", told))
            script = rest.replace("http://127.0.0.1:8080", url)
            subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=environment, check=True, timeout=SECONDS)
        finally:
            server.terminate()
        ended = server.stdout.read()
    summary = json.loads((tmp_path / "runs/rehearsal/summary.json").read_text())
    assert summary["spent"] == 20_000
    assert summary["agreement"] > 0.5
    assert f"{summary['spent'] + summary['evaluation_queries']:,} images" in ended, ended
    assert server.returncode == 0


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_no_figure_is_still_to_be_measured(page):
    assert "TBD" not in page.read_text(encoding="utf-8")

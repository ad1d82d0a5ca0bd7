"""What README and docs show is so: tables are the code's, flags exist, and marked blocks run as
printed.
"""

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command_line import options_of_sections, parse_extract
from toys import LinearTeacher, make_method, make_parts

import dfme
from dfme.audits.audit.options import AuditConfig
from dfme.audits.compare.plan import CompareConfig
from dfme.cli.flags import ALIASES
from dfme.cli.main import VERBS, find
from dfme.config.defences import DEFENCES, DETECTORS
from dfme.config.values import options_of
from dfme.config.yaml_files import load_yaml
from dfme.methods import METHODS
from dfme.report.metrics import METRICS
from dfme.run.job import POOLS
from dfme.spec import ImageSpec
from research.options import BenchConfig, GradientsConfig

ROOT = Path(__file__).resolve().parents[2]
RECIPES_PAGE = ROOT / "configs" / "README.md"
PAGES = [ROOT / "README.md", ROOT / "research" / "README.md", RECIPES_PAGE]
PAGES[1:1] = sorted((ROOT / "docs").rglob("*.md"))
TEXT = {page: page.read_text(encoding="utf-8") for page in PAGES}
ALL = "\n".join(TEXT.values())
RECIPES = sorted(
    path
    for path in (ROOT / "configs").glob("*.yaml")
    if not path.name.startswith(("compare_", "audit"))
)
SECONDS = 110
MARK = r"<!-- tested: (?P<section>[\w-]+)(?:, file (?P<file>\S+))? -->\n"
BLOCK_OF_PYTHON = re.compile(r"```python\n(.*?)```", re.S)
BLOCK = re.compile(MARK + r"```(?P<language>\w+)\n(?P<text>.*?)```", re.S)


class Block(NamedTuple):
    """A fenced block after a mark: ``<!-- tested: SECTION -->`` runs, ``, file NAME`` is saved
    under that name."""

    section: str
    file: str | None
    language: str
    text: str


def marked_blocks() -> list[Block]:
    """Those of all pages, README's first."""
    return [
        Block(*found.group("section", "file", "language", "text")) for found in BLOCK.finditer(ALL)
    ]


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
    parts = make_parts(
        LinearTeacher(ImageSpec((1, 8, 8))), 10**6, keeps=entry.keeps, count=entry.students
    )
    return make_method(name, parts, **dataclasses.asdict(entry.config()))


def test_the_two_commands_stand_there_as_they_are_run():
    lines = TEXT[ROOT / "README.md"].splitlines()
    assert len(lines) <= 200
    assert "    pip install -e . && python run.py" in lines[:12]
    assert '    pip install -e ".[dev]" && python -m pytest' in lines[:60]


def test_the_page_of_public_names_has_them_all_and_the_examples_of_extending_import_no_others():
    named = [name for row in rows("Name", TEXT[ROOT / "docs" / "api.md"]) for name in coded(row[0])]
    assert sorted(named) == sorted(set(dfme.__all__) - {"__version__"})
    code = "\n".join(BLOCK_OF_PYTHON.findall(TEXT[ROOT / "docs" / "extending.md"]))
    imported = [line for line in code.splitlines() if re.match(r"(from|import) dfme\b", line)]
    assert {line.split()[1] for line in imported} == {"dfme"}
    assert len(imported) >= 3


@pytest.mark.parametrize(
    ("page", "head", "registry"),
    [
        ("defences.md", ("Defence", "Rule"), DEFENCES),
        ("watch.md", ("Name", "Statistic"), DETECTORS),
    ],
)
def test_every_defence_and_every_detector_has_a_row_in_its_page(page, head, registry):
    tables = TEXT[ROOT / "docs" / page].split(f"| {' | '.join(head)} |")[1:]
    assert len(tables) == 1
    table = tables[0].partition("\n\n")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.M)
    assert named == [*registry], f"a row for each, in the order of the registry, in docs/{page}"


def test_a_release_has_at_most_20_lines_in_the_changelog():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for release in re.split(r"^## ", changelog, flags=re.M)[1:]:
        lines = release.strip().splitlines()
        assert len(lines) <= 21, f"{lines[0]}: {len(lines) - 1} lines"


def test_every_method_has_a_row_with_its_label_modes_and_its_cost():
    modes = {coded(row[0])[0]: row[2] for row in rows("Method", TEXT[ROOT / "README.md"])}
    costs = {
        coded(row[0])[0]: row[-1] for row in rows("Method", TEXT[ROOT / "docs" / "methods.md"])
    }
    assert list(modes) == list(costs) == list(METHODS)
    for name in METHODS:
        method = default_method(name)
        assert coded(modes[name]) == list(method.label_modes), name
        assert f"({method.cost:,})" in costs[name], name


def test_every_method_has_a_recipe_and_every_recipe_a_row():
    recipes = {path.name for path in RECIPES}
    table = rows("Recipe", TEXT[RECIPES_PAGE])
    named = {
        found[0]: coded(row[1])[0]
        for row in table
        if (found := re.findall(r"\[(\S+\.yaml)\]", row[0]))
    }
    assert set(named) == recipes
    for recipe, method in named.items():
        assert load_yaml(ROOT / "configs" / recipe)["method"]["name"] == method
    assert set(named.values()) == set(METHODS)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_understood_where_the_files_it_names_are_there(recipe):
    method = load_yaml(recipe)["method"]
    images = [f"--method.{name}=procedural" for name in POOLS if name in method]
    here = [
        "--teacher.checkpoint=teachers/checkpoints/digits.safetensors",
        "--evaluation.dataset=none",
    ]
    assert parse_extract(["--config", str(recipe), *here, *images]).method == method["name"]


def test_the_table_of_metrics_is_the_one_the_code_makes():
    assert rows("Metric") == [
        [f"`{name}`", metric.unit, metric.meaning] for name, metric in METRICS.items()
    ]


def test_every_command_has_a_row():
    assert [coded(row[0])[0] for row in rows("Command")] == list(VERBS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_flags_exist_and_no_figure_is_still_to_be_measured(page):
    targets = re.findall(r"\]\(([^)#]+)\)", TEXT[page])
    assert [
        t for t in targets if not t.startswith("https://") and not (page.parent / t).exists()
    ] == []
    own = {"teacher.sharpness", "teacher.factor"}
    own |= {"nets", "package", "steps", "task"}  # of research scripts
    own |= {"attacks", "candidates", "copy_steps", "kind", "life", "push", "temperature"}
    own |= {"share", "unrolled", "weight"}
    own |= {"brief", "copy_seeds", "innocents", "like", "mirror"}
    own |= {"owner", "owner_steps", "rehearsal", "start"}
    own |= {"accounts", "pictures", "place", "weights", "window"}
    assert {
        flag.replace("-", "_") for flag in re.findall(r"(?<![\w-])--([a-z][\w.-]*\w)", TEXT[page])
    } - known_flags() - own == set()
    assert "TBD" not in TEXT[page]


@cache
def known_flags() -> set[str]:
    """Every flag there is, but those of a teacher of one's own."""
    roots = [commands.INPUTS.root for verb in VERBS if hasattr(commands := find(verb), "INPUTS")]
    roots += [AuditConfig, CompareConfig, GradientsConfig, BenchConfig]
    options = [*options_of_sections(), *(option for root in roots for option in options_of(root))]
    return {option.key for option in options} | {
        "config",
        "help",
        "help_all",
        "method.name",
        *ALIASES,
    }


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
        words = (
            ["python", str(script)] if block.language == "python" else ["bash", "-e", str(script)]
        )
        options: dict[str, Any] = {
            "cwd": folder,
            "env": environment,
            "capture_output": True,
            "text": True,
        }
        done = subprocess.run(words, **options, timeout=SECONDS)
        assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
        printed += done.stdout
    return printed


def test_the_marked_blocks_are_the_ones_tested_here():
    elsewhere = {
        "own-teacher",
        "rehearsal",
        "adapter",
    }  # which tests/teachers/remote/test_adapters_page.py has
    assert {block.section for block in marked_blocks()} == {*PRINTED, *elsewhere}
    assert ALL.count("<!-- tested:") == len(marked_blocks())


PRINTED = {
    "seam": ["288 torch.Size([48, 16])\n"],
    "python": ["runs/ask"],
    "own-parts": ["load_student"],
    "gradients": [
        "recommended: --estimator.kind finite_difference --estimator.objective kl "
        "--estimator.space lattice"
    ],
    "checkpoint": ["teacher accuracy    0.98"],
    "defences": [],
    "own-defences": ["['my_defence:Blend:share=0.3', 'lattice:n=10'] ['my_detector:Contrast']\n"],
}
"""Section -> parts of what its blocks print."""
SUMMARIES: dict[str, dict[str, dict[str, Any]]] = {
    "python": {"ask": {"spent": 1_000, "budget": 1_000, "agreement": 0.5}},
    "own-parts": {
        "stripes": {"method": "my_images:Stripes", "spent": 500},
        "entropy": {"method": "my_method:Entropy", "spent": 1_000},
        "nets": {"student_arch": "my_nets:Net", "spent": 500},
    },
    "own-defences": {
        "blended": {"defences": ["my_defence:Blend:share=0.3", "lattice:n=10"], "spent": 500},
        "watched": {"spent": 500},
    },
    "gradients": {"auto": {"method": "dfme"}},
    "checkpoint": {"shapes": {"spent": 3_000, "agreement": 0.4}},  # chance is a tenth
    "defences": {"recovered": {"agreement": 0.6}},  # with the answers as they came it is below half
}
"""Section -> run -> entries of its summary; of an agreement what it is above."""


def read_summary(folder: Path, run: str) -> Any:
    return json.loads((folder / "runs" / run / "summary.json").read_text())


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize("section", PRINTED)
def test_a_section_runs_as_printed(section, tmp_path):
    printed = run_section(section, tmp_path)
    assert all(part in printed for part in PRINTED[section]), printed
    for run, expected in SUMMARIES.get(section, {}).items():
        summary = read_summary(tmp_path, run)
        for name, value in expected.items():
            assert summary[name] > value if name == "agreement" else summary[name] == value, name
    if section == "gradients":
        summary = read_summary(tmp_path, "auto")
        assert (summary["estimator"]["space"], summary["spent_by_purpose"]["check"]) == (
            "lattice",
            224,
        )
        assert {
            path.suffix for path in (tmp_path / "runs/gradients").iterdir() if path.name != ".lock"
        } == {".md", ".json", ".png"}
    if section == "defences":
        bill = json.loads((tmp_path / "runs/bill/utility.json").read_text())["rows"]
        assert [row["defence"].partition(":")[0] for row in bill] == [
            "none",
            "modelguard_w",
            "label",
        ]


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_teacher_of_ones_own_as_printed_and_what_its_run_leaves_behind(tmp_path):
    run_section("own-teacher", tmp_path)
    assert [read_summary(tmp_path, run)["method"] for run in ("halves", "sharp")] == [
        "dfme",
        "static",
    ]
    assert "sharpness: 8" in (tmp_path / "runs/halves/config.yaml").read_text()
    listed = {name for row in rows("File") for name in coded(row[0])}
    found = {
        f"{path.name}/" if path.is_dir() else path.name
        for path in (tmp_path / "runs/halves").iterdir()
    }
    sometimes = {
        "checkpoint.previous.pt",
        "adapter.yaml",
        "estimate.json",
        "features.db",
        "queries/",
        "replay/",
        "wandb/",
        "wandb.json",
        "watch.jsonl",
        "data.json",
        "drill.json",
        "channel.json",
    }
    assert listed - found == sometimes, "only these are not always there"
    assert found <= listed


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_an_audit_is_rehearsed_as_printed_and_two_meters_agree(tmp_path):
    pytest.importorskip("uvicorn")
    serve, rest = (block.text for block in marked_blocks() if block.section == "rehearsal")
    options: dict[str, Any] = {"cwd": tmp_path, "env": in_a_folder(tmp_path)}
    words = shlex.split(serve.replace("8080", "0"))
    with subprocess.Popen(words, **options, stdout=subprocess.PIPE, text=True) as server:
        try:
            (url,) = set(re.findall(r"http://127\.0\.0\.1:\d+", server.stdout.readline()))
            script = rest.replace("http://127.0.0.1:8080", url)
            subprocess.run(["bash", "-e", "-c", script], **options, check=True, timeout=SECONDS)
        finally:
            server.terminate()
        ended = server.stdout.read()
    summary = read_summary(tmp_path, "rehearsal")
    assert summary["spent"] == 3_000
    assert summary["agreement"] > 0.5
    assert f"{summary['spent'] + summary['evaluation_queries']:,} images" in ended, ended
    assert server.returncode == 0

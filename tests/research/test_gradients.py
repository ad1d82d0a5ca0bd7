"""Estimated gradients beside the true ones: the truth by hand, figures against theory, stages, tables;
a network as an API shows it.
"""

import json
import math
from pathlib import Path

import pytest
import torch
from tables import exhaustive
from torch import Tensor, nn

from dfme.compute.device import Streams
from dfme.config.sections import EstimatorConfig
from dfme.config.settings import EvaluationConfig, ExtractConfig, Job, StudentConfig, TeacherConfig
from dfme.errors import UserError
from dfme.estimators.base import Objective
from dfme.methods.configs import DfmeConfig
from dfme.nets.generators import Generator
from dfme.run.directory import LOCK
from dfme.run.job import PROJECT
from dfme.spec import ImageSpec, LabelMode
from dfme.students.losses import make_distance
from dfme.teachers.build import make_teacher
from dfme.teachers.local.pytorch import TorchTeacher, load_torch
from dfme.teachers.options import TorchOptions
from research.behind_api import as_seen
from research.candidates import CANDIDATES, CONDITIONS, LIMIT, PUBLISHED
from research.gradients import FILES, compare_gradients, require_local, run
from research.measure import GradientRow, Setting, Sizes, measure
from research.options import GradientsConfig
from research.synthetic_course import PICTURE, course
from research.table import GradientsResult, StageFacts, as_json, overview
from research.truth import Stage, TrueGradient, stages, true_gradients, weights_gradient

SPEC = ImageSpec((1, 8, 8), (-1.0, 1.0))
CPU = torch.device("cpu")
TEACHER = 12.0  # sharpness that makes its answers confident, as trained ones are


def net(seed: int, sharpness: float = 3.0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 5))
    made[-1].weight.data.mul_(sharpness)
    return made.eval()


def figures(
    box: TorchTeacher, stage: Stage, condition: str, *names: str, batches: int = 3
) -> dict[str, GradientRow]:
    rows = measure(
        box, stage, condition, {name: CANDIDATES[name] for name in names}, Sizes(batches, 64, 0)
    )
    return {row.estimator: row for row in rows}


def job(**changes: object) -> Job:
    config = ExtractConfig(
        budget=200,
        student=StudentConfig(arch="cnn_small", lr=0.05, replay_steps=1, replay_batch=8),
        evaluation=EvaluationConfig(dataset="none"),
    )
    method = DfmeConfig(batch_size=8, student_steps=2, latent_size=16)
    return Job(config, TeacherConfig(), {}, "dfme", method, EstimatorConfig(**changes))


@pytest.fixture(scope="module")
def box() -> TorchTeacher:
    return TorchTeacher(net(1, TEACHER), SPEC, 5)


@pytest.fixture(scope="module")
def stage() -> Stage:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Stage(0.0, 0, 0.2, net(2), Generator(16, SPEC))


def weights(stage: Stage) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in stage.student.parameters()])


def test_the_truth_is_the_slope_of_the_objective_written_out_by_hand(box, stage):
    truth = true_gradients(
        box, stage, {"l1": make_distance("l1", LabelMode("logits"))}, 4, Streams(0, CPU)["latent"]
    )["l1"]
    student = net(2).double()
    teacher = net(1, TEACHER).double()
    u_BCHW = truth.gen_op.detach().double()
    v_BCHW = torch.randn(4, *SPEC.shape, dtype=torch.double)

    def objective(u: Tensor) -> Tensor:
        log_p = teacher(u.tanh()).softmax(1).log()
        return -(student(u.tanh()) - (log_p - log_p.mean(1, keepdim=True))).abs().mean(1)

    slope_B = (objective(u_BCHW + 1e-7 * v_BCHW) - objective(u_BCHW - 1e-7 * v_BCHW)) / 2e-7
    torch.testing.assert_close(
        (truth.grad_BCHW * v_BCHW).sum((1, 2, 3)), slope_B, rtol=1e-3, atol=1e-4
    )

    # In place of an estimate it is the same, whatever a query would answer.
    distance = make_distance("l1", LabelMode("probabilities"))
    known = Objective(pytest.fail, lambda x, answers: -distance(net(2)(x).double(), answers))
    estimate = TrueGradient(box, torch.tanh).estimate(
        known, truth.gen_op.detach(), Streams(0, CPU)["directions"]
    )
    torch.testing.assert_close(
        (estimate.grad_BCHW * v_BCHW).sum((1, 2, 3)), slope_B, rtol=1e-3, atol=1e-4
    )
    assert estimate.queries == 0


def test_the_weights_gradient_is_what_the_seam_leaves_in_the_weights(stage):
    gen_op = stage.generator(torch.randn(6, 16))
    grad_BCHW = torch.randn_like(gen_op)
    weights_P = weights_gradient(stage.generator, gen_op, grad_BCHW)
    gen_op.backward(grad_BCHW / 6)
    expected_P = torch.cat([parameter.grad.flatten() for parameter in stage.generator.parameters()])
    stage.generator.zero_grad()
    torch.testing.assert_close(weights_P, expected_P)


def test_random_directions_do_as_well_as_theory_says(box, stage):
    rows = figures(box, stage, "exact", "sphere", "sphere_9", "sphere_reused")
    assert rows["sphere"].cosine == pytest.approx(math.sqrt(2 / (math.pi * 64)), rel=0.2)
    assert rows["sphere_9"].scale == pytest.approx(1.0, abs=0.5)
    assert [rows[name].queries for name in ("sphere", "sphere_reused", "sphere_9")] == [2, 2, 10]
    assert (
        rows["sphere"].weights_cosine
        < rows["sphere_9"].weights_cosine
        < rows["sphere_9"].sum_cosine
    )
    assert rows[LIMIT].cosine == pytest.approx(1.0, abs=1e-4)


def test_lost_precision_kills_the_published_step_and_its_remedies_survive(box, stage):
    exact = figures(box, stage, "exact", "sphere")["sphere"]
    rows = figures(box, stage, "8bit", "sphere", "lattice")
    assert (
        abs(rows["sphere"].cosine)
        < 0.4 * exact.cosine
        < 0.7 * exact.cosine
        < rows["lattice"].cosine
    )
    rows = figures(box, stage, "2decimals", "sphere", "dct_kl", "auto")
    assert {name: row.objective for name, row in rows.items()} == {
        "sphere": "l1",
        "dct_kl": "kl",
        "auto": "kl",
        LIMIT: "l1",
        f"{LIMIT}_kl": "kl",
    }
    assert rows[f"{LIMIT}_kl"].cosine > 0.99 > 0.98 > rows[LIMIT].cosine, (
        "l1 does not outlive the rounding"
    )


TELLING = ["range_reused", "lattice_dct_kl"]


@pytest.mark.parametrize(
    "name", [*TELLING, *exhaustive(*(name for name in CANDIDATES if name not in TELLING))]
)
def test_every_row_can_be_estimated(box, stage, name):
    condition = next(key for key, entry in CONDITIONS.items() if CANDIDATES[name].fits(entry))
    row = figures(box, stage, condition, name, batches=2)[name]
    assert math.isfinite(row.cosine)
    assert row.queries == (10 if name.endswith("_9") else 2), (
        "all the others at the published price"
    )


def test_the_conditions_are_what_they_are_called(box, stage):
    oracles = {
        name: Setting(box, stage, entry, Sizes(2, 8, 0)).oracle
        for name, entry in CONDITIONS.items()
    }
    x_BCHW = 2 * torch.rand(8, *SPEC.shape) - 1
    answers = {name: oracle(x_BCHW) for name, oracle in oracles.items() if name != "tf32"}
    torch.testing.assert_close(answers["4decimals"], answers["exact"].round(decimals=4))
    torch.testing.assert_close(
        answers["8bit"], oracles["exact"](oracles["8bit"].spec.quantise(x_BCHW))
    )
    assert int(answers["top3"].isnan().sum()) == 8 * 2
    assert 1e-6 < (answers["bf16"] - answers["exact"]).abs().max() < 0.1


def test_stages_are_copies_taken_on_the_way_and_a_free_gradient_asks_for_nothing(box):
    first = list(stages(box, job(), (0.0, 0.3, 1.0)))
    assert [stage.queries for stage in first] == [0, 64, 200], (
        "whole steps of 32, and the budget to its end"
    )
    assert torch.equal(weights(first[2]), weights(next(stages(box, job(), (1.0,)))))
    assert not torch.equal(weights(first[1]), weights(first[2]))
    assert [
        stage.queries
        for stage in list(stages(box, job(), (0.35, 1.0), lambda squash: TrueGradient(box, squash)))
    ] == [80, 200], "whole steps of 2 x 8 for the student alone"


def row(
    name: str,
    weights_cosine: float,
    queries: float = 2.0,
    spread: float = 0.01,
    condition: str = "exact",
):
    rest = (queries, 0.1, 0.01, 1.0, 0.1, weights_cosine, spread, 0.2, 1.0, {})
    return GradientRow(0.0, condition, name, "kl" if "kl" in name else "l1", *rest)


def best_rows(rows: list[GradientRow]) -> dict[str, list[str]]:
    """The cells of the overview's table of best rows, by condition."""
    text = overview(GradientsResult({}, 64, [StageFacts(0.0, 0, 0.1)], rows, [])).partition(
        "best row"
    )[2]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return {line[0]: line[1:] for line in lines if len(line) == 8}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            [
                row("sphere", 0.1),
                row("dct", 0.25),
                row("sphere_9", 0.9, 10.0),
                row(LIMIT, 1.0, 0.0),
            ],
            ("dct", "2.5"),
        ),
        ([row("sphere", 0.001, spread=0.02), row("dct", 0.3)], ("dct", "noise")),
        ([row("sphere", -0.1, spread=0.2), row("dct", 0.1, spread=0.2)], ("none is clear", "")),
    ],
)
def test_the_best_row_is_named_at_the_published_price(rows, expected):
    best = best_rows(rows)["exact"]
    assert (best[0], best[4]) == expected


def test_the_best_row_is_compared_with_the_published_one_here_and_where_nothing_is_lost():
    rows = [
        row(name, value, condition="4decimals")
        for name, value in ((PUBLISHED, 0.05), ("dct_kl", 0.3))
    ]
    rows.insert(0, row(PUBLISHED, 0.2))
    expected = ["dct_kl", "kl", "0.300 +- 0.010", "0.050 +- 0.010", "6.0", "0.200 +- 0.010", "1.5"]
    assert best_rows(rows)["4 decimals"] == expected
    assert best_rows(rows[1:])["4 decimals"] == [*expected[:5], "", ""], "exact was not measured"


def test_a_figure_that_is_no_number_is_null_in_the_file():
    result = GradientsResult({}, 64, [StageFacts(0.0, 0, 0.1)], [row("sphere", math.nan)], [])
    assert json.loads(as_json(result))["rows"][0]["weights_cosine"] is None


@pytest.mark.exhaustive
def test_the_course_of_synthetic_gradients_charges_nobody_and_changes_nothing(box):
    synthetic = job(kind="synthetic", every=3)
    alone = list(course(box, synthetic, Sizes(2, 16, 0), (1.0,)))[-1]
    assert alone == list(course(box, synthetic, Sizes(2, 16, 0), (0.4, 1.0)))[-1]
    assert alone["queries"] == 200
    assert 0 < alone["length"] < 1, "a conditional mean is shorter than an estimate with its noise"


@pytest.mark.exhaustive
def test_a_comparison_keeps_what_it_prints(box, tmp_path: Path, capsys):
    out = tmp_path / "out"
    names = ("sphere", "lattice", "lattice_dct_kl")
    conditions = ("exact", "8bit_4decimals")
    chosen = {"stages": (0.0, 0.5), "conditions": conditions, "estimators": names}
    config = GradientsConfig(batches=2, batch_size=16, free=True, out=str(out), **chosen)
    assert compare_gradients(box, job(kind="synthetic", every=3), config) == out
    assert capsys.readouterr().out.startswith("White box: the teacher's own gradients")
    assert {path.name for path in out.iterdir()} == {*FILES, PICTURE, LOCK}
    rows = {
        (entry["share"], entry["condition"], entry["estimator"]): entry
        for entry in json.loads((out / "gradients.json").read_text())["rows"]
    }
    kinds = {("exact", "sphere"), ("exact", LIMIT)}
    kinds |= {("8bit_4decimals", name) for name in (*names, LIMIT, f"{LIMIT}_kl")}
    assert set(rows) == {(share, *kind) for share in (0.0, 0.5) for kind in kinds}
    text = (out / "gradients.md").read_text()
    assert "- `lattice`: step 1.0, space lattice" in text
    section = text.partition("## The true gradient for nothing")[2].splitlines()
    cells = [cell.strip() for cell in section[4].strip("|").split("|")]
    assert (cells[0], cells[1]) == ("0%", cells[2]), "nothing was learnt yet"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--conditions exakt", "--conditions: expected a condition (all, exact"),
        ("--method knockoff", "--method: expected a method with a generator"),
        (
            "--stages 0.5,0.1",
            "--stages: expected increasing shares of the budget from 0 to 1, got 0.5,0.1",
        ),
        ("--teacher.label-mode label", "--teacher.label-mode: expected scores"),
        ("--conditions tf32 --device cpu", "--conditions tf32: expected a CUDA device"),
        (
            "--free true --method static",
            "--free: expected a method that estimates gradients, got static",
        ),
    ],
)
def test_a_mistake_is_named(flags, message):
    with pytest.raises(UserError) as caught:
        run(flags.split())
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", ["my_module:MyTeacher", "v2"])
def test_only_a_network_on_this_machine_has_gradients(kind):
    with pytest.raises(UserError, match=rf"--teacher {kind}: .* on this machine .*run.py check"):
        require_local(kind)


# A network as an API shows it

OPTIONS = {"checkpoint": str(PROJECT / "teachers/checkpoints/shapes.safetensors")}


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.rand(6, 3, 12, 12, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "mode", ["logits", "probabilities", "probabilities:4", "top_k:3", "top_k:3:2", "label"]
)
def test_what_is_seen_is_what_the_teacher_would_answer(images, mode):
    box = load_torch(TorchOptions(**OPTIONS), TeacherConfig(), CPU)
    seen = as_seen(box, None, LabelMode.parse(mode))
    teacher = make_teacher(TeacherConfig(label_mode=mode), OPTIONS, CPU)
    torch.testing.assert_close(seen(images), teacher(images), rtol=0, atol=0, equal_nan=True)
    assert seen.label_mode == teacher.label_mode
    assert not seen(images).requires_grad
    assert as_seen(box, 256, LabelMode.parse(mode)).spec.levels == 256


def test_gradients_go_through_the_normalisation():
    linear = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
    box = TorchTeacher(linear, ImageSpec((1, 2, 2)), 3, mean=(0.5,), std=(0.25,))
    x_BCHW = torch.rand(2, 1, 2, 2, requires_grad=True)
    (grad_BCHW,) = torch.autograd.grad(box.logits(x_BCHW)[:, 1].sum(), x_BCHW)
    torch.testing.assert_close(
        grad_BCHW, (linear[1].weight[1] / 0.25).view(1, 1, 2, 2).expand(2, -1, -1, -1)
    )

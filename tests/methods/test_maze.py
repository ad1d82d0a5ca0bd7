"""MAZE: what an iteration pays and holds, the published optimiser, and its variant with a few real images.
DFME with every kind of estimator: what it pays, what it reuses, what it leaves to the check.
"""

import math

import numpy as np
import pytest
import torch
from begun import EIGHT_BIT, SPEC, begun
from command_line import parse_extract
from tables import exhaustive
from torch import nn
from toys import LinearTeacher, goes_on_bit_for_bit

import dfme
from dfme.config.sections import EstimatorConfig
from dfme.errors import UserError
from dfme.estimators.preflight.measure import preflight_images
from dfme.methods import maze
from dfme.methods.configs import MazeConfig
from dfme.methods.generator_losses import Wasserstein
from dfme.methods.maze import Maze
from dfme.nets.generators import discriminator
from dfme.report.metrics import METRICS
from dfme.run.loop import numbers

SMALL = {"seed_images": 12, "critic_steps": 2}


@pytest.fixture
def bright(tmp_path):
    """Thirty bright images."""
    images = np.random.default_rng(0).integers(225, 256, (30, 8, 8)).astype(np.uint8)
    np.savez(tmp_path / "bright.npz", images=images)
    return str(tmp_path / "bright.npz")


@pytest.mark.parametrize(
    ("options", "cost"),
    [
        ({}, 8 * (11 + 2 - 1)),
        ({"reuse": False}, 8 * (11 + 2)),
        ({"reuse": False, "form": "central"}, 8 * (20 + 2)),
        ({"generator_steps": 3, "student_steps": 4, "directions": 2}, 8 * (3 * 3 + 4 - 1)),
        ({"student_steps": 1}, 8 * 11),
    ],
)
def test_the_cost_is_the_papers_and_the_teacher_counts_as_much(options, cost):
    teacher, parts, method = begun("maze", **options)
    assert method.cost == cost
    for step in (1, 2):
        method.step()
        assert teacher.images == parts.oracle.ledger.spent == step * cost
    assert parts.students.steps == 2 * options.get("student_steps", 2), (
        "every batch, paid for or reused"
    )


@pytest.mark.parametrize(("store", "batches"), [("last", 1), ("all", 3)])
@pytest.mark.parametrize("reuse", [True, False])
def test_of_an_iteration_the_last_batch_is_held_or_all(store, batches, reuse):
    _, parts, method = begun(
        "maze", student={"replay_steps": 2}, student_steps=3, store=store, reuse=reuse
    )
    for _ in range(2):
        method.step()
    assert len(parts.students.replay) == 2 * batches * 8
    assert parts.students.steps == 2 * (3 + 2 * batches), "replay steps follow what is held"
    method.finish(12)
    assert len(parts.students.replay) == 2 * batches * 8 + (4 if store == "last" else 12)


@pytest.mark.parametrize("published", [True, False])
def test_the_generators_steps_are_sgds_with_momentum_and_weight_decay(published):
    """Written out here: v = momentum * v + (grad + decay * w)."""
    momentum, decay = (0.9, 5e-4) if published else (0.0, 0.0)
    options = {} if published else {"generator_momentum": 0.0, "generator_weight_decay": 0.0}
    _, parts, method = begun("maze", generator_lr=0.5, **options)
    weights = [parameter.detach().clone() for parameter in parts.generator.parameters()]
    velocities = [torch.zeros_like(weight) for weight in weights]
    for _ in range(4):
        metrics = numbers(method.step())
        for number, now in enumerate(parts.generator.parameters()):
            velocities[number] = momentum * velocities[number] + (
                now.grad + decay * weights[number]
            )
            weights[number] = weights[number] - 0.5 * velocities[number]
            torch.testing.assert_close(now.detach(), weights[number])
    assert metrics["generator_lr"] == 0.5


def test_bare_flags_give_mazes_own_estimator(tmp_path):
    plain = ["--method", "maze", "--out", str(tmp_path / "run"), "--budget", "300k"]
    for flags, directions in ((plain, 10), ([*plain, "--estimator.directions", "3"], 3)):
        job = parse_extract(flags)
        assert (job.estimator.directions, job.estimator.objective) == (directions, "kl")
        assert job.method_config.batch_size == 128


def test_an_open_estimator_is_settled_with_the_reused_answers_in_mind():
    _, parts, method = begun("maze", kind="auto", directions=1)
    assert method.prepare()
    assert method.facts["estimator"]["form"] == "forward"
    spent = parts.oracle.ledger.spent
    method.step()
    assert parts.oracle.ledger.spent - spent == method.cost == 8 * (2 + 1)


def test_the_critics_loss_by_hand():
    """A linear critic: its gradient is its weight everywhere, so the penalty is (|w| - 1)^2."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        net[1].weight.copy_(torch.tensor([[3.0, 4.0]]))
    game = Wasserstein(10.0, torch.Generator().manual_seed(0))
    real, fake = torch.tensor([[1.0, 0.0], [1.0, 2.0]]), torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    loss = game.of_discriminator(net, real.view(2, 1, 1, 2), fake.view(2, 1, 1, 2))
    assert loss.item() == pytest.approx((4 + 6) / 2 - (3 + 11) / 2 + 10 * (5 - 1) ** 2)
    loss.backward()
    expected = (fake.mean(0) - real.mean(0)) + 20 * (5 - 1) * torch.tensor([3.0, 4.0]) / 5
    torch.testing.assert_close(net[1].weight.grad[0], expected)
    assert game.of_generator(net, fake.view(2, 1, 1, 2)).item() == pytest.approx(-5)


@pytest.mark.parametrize("source", ["bright", "procedural"])
def test_seeds_are_paid_for_once_as_seeds_and_learnt_from(source, bright):
    seeds = bright if source == "bright" else source
    teacher, parts, method = begun("maze", student={"replay_steps": 1}, partial_data=seeds, **SMALL)
    assert any("12 images" in line for line in method.prepare())
    assert teacher.images == parts.oracle.ledger.spent_by_purpose["seed"] == 12
    assert parts.students.steps == 2 * 2, "in batches of 8 and 4"
    images, answers = next(parts.students.replay.batches(12))
    assert len(images.unique(dim=0)) == 12
    assert source != "bright" or images.min() >= 225 / 255
    assert torch.equal(answers, LinearTeacher(SPEC)(images))
    assert method.prepare() == ()
    metrics = numbers(method.step())
    assert teacher.images == 12 + method.cost
    assert "discriminator_loss" in metrics


def test_the_critics_gradient_is_added_at_the_generators_output(bright, monkeypatch):
    """Of two runs that differ in the weight alone, the upstream gradients differ by the weighted
    autograd gradient."""
    handed = {}
    for weight in (0.0, 7.0):
        _, parts, method = begun("maze", partial_data=bright, gan_weight=weight, **SMALL)
        method.prepare()

        def keep(gen_op, upstream_grads, deferred, weight=weight):
            handed[weight] = (gen_op.detach(), upstream_grads)

        monkeypatch.setattr(maze, "check_upstream", keep)
        method.critic_steps()
        method.generator_step(8)
    gen_op, plain = handed[0.0]
    u = gen_op.clone().requires_grad_()
    (truth,) = torch.autograd.grad(-method._critic.net(parts.generator.squash(u)).mean(), u)
    assert torch.equal(handed[7.0][0], gen_op)
    torch.testing.assert_close(handed[7.0][1] - plain, 7 * truth, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("config", "budget", "said"),
    [
        (
            {"seed_images": 50},
            50,
            "--budget: expected more than the 50 images of --method.seed-images",
        ),
        ({"seed_images": 31}, 1_000, "has 30 images; ask for fewer, or name a larger"),
    ],
)
def test_seeds_that_cannot_be_had_are_refused_before_the_first_query(bright, config, budget, said):
    with pytest.raises(UserError, match=said):
        Maze.open_pool(MazeConfig(partial_data=bright, **config), SPEC, budget)
    assert Maze.open_pool(MazeConfig(), SPEC, 1) is None


def test_labels_alone_are_refused_with_the_methods_that_can_use_them(tmp_path):
    teacher = LinearTeacher(SPEC, mode="label")
    with pytest.raises(
        UserError, match='method="maze" needs a teacher that answers logits or'
    ) as refused:
        dfme.extract(teacher, budget=100, method="maze", out=tmp_path / "run", evaluation="none")
    for able in ("disguide", "dual_students", "knockoff", "procedural"):
        assert able in str(refused.value)
    assert teacher.images == 0


@pytest.mark.parametrize(
    "shape", [(1, 8, 8), (3, 32, 32), (3, 64, 64), (2, 8, 64), (1, 13, 9), (3, 1, 5), (1, 2, 2)]
)
@pytest.mark.parametrize("normalised", [True, False])
def test_discriminators_take_every_size(shape, normalised):
    net = discriminator(shape, normalised=normalised, width=4)
    x = torch.rand(5, *shape)
    scores = net(x)
    assert scores.shape == (5, 1)
    assert scores.std() > 0
    assert torch.allclose(net(x[:2]), scores[:2], atol=1e-5) or normalised


# DFME with every kind of estimator

SETTINGS = {
    "central": ({"form": "central", "directions": 2}, 2 * 2),
    "orthogonal": ({"direction": "orthogonal", "directions": 3}, 3 + 1),
    "dct": ({"direction": "dct"}, 1 + 1),
    "range": ({"direction": "range"}, 1 + 1),
    "image": ({"space": "image"}, 1 + 1),
    "lattice": ({"space": "lattice", "step": 2.0, "direction": "dct"}, 1 + 1),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_step_spends_its_cost_and_the_teacher_counts_as_much(name):
    options, per_image = SETTINGS[name]
    teacher, parts, method = begun("dfme", spec=EIGHT_BIT, **options)
    assert method.prepare() == ()
    assert method.cost == 8 * (per_image + 2)
    before = [parameter.clone() for parameter in parts.generator.parameters()]
    for step in (1, 2):
        metrics = method.step()
        assert teacher.images == parts.oracle.ledger.spent == step * method.cost
    assert set(metrics) <= set(METRICS)
    assert all(math.isfinite(value) for value in numbers(metrics).values())
    assert any(
        not torch.equal(*pair) for pair in zip(before, parts.generator.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    "options", [{"kind": "synthetic"}, {"kind": "auto"}, *exhaustive(SETTINGS["range"][0])]
)
def test_k_steps_a_round_trip_and_the_rest_are_n_steps_bit_for_bit(options):
    goes_on_bit_for_bit(lambda seed: begun("dfme", spec=EIGHT_BIT, seed=seed, **options)[2])


def test_predicted_steps_cost_nothing_and_the_cost_says_so_beforehand():
    teacher, _, method = begun("dfme", 100_000, kind="synthetic", every=4)
    costs, spent = [], []
    for _ in range(17):
        before = teacher.images
        costs.append(method.cost)
        metrics = numbers(method.step())
        spent.append(teacher.images - before)
        assert ("generator_loss" in metrics) == (spent[-1] == 8 * 4)
        assert metrics["generator_grad_norm"] > 0
    assert (spent, set(spent[8:]), spent[8:].count(8 * 4)) == (costs, {8 * 2, 8 * 4}, 3)


@pytest.mark.parametrize("steps", [1, 3])
def test_reuse_pays_one_batch_less_and_the_student_learns_from_the_generators(steps):
    options = {"reuse": True, "directions": 2, "student_steps": 3, "generator_steps": steps}
    teacher, parts, method = begun("dfme", student={"replay_steps": 1}, **options)
    assert method.cost == 8 * (steps * (2 + 1) + 3 - 1)
    method.step()
    ledger = parts.oracle.ledger
    assert ledger.spent_by_purpose["generator"] == 8 * 3 * steps
    assert ledger.spent_by_purpose["student"] == 8 * 2
    assert parts.students.steps == 2 * 3, "three batches with a replay step each"
    images, answers = method.last_objective.first_asked(8)
    assert torch.equal(answers, teacher(images)), (
        "the generator's points with the answers that were paid for"
    )


def test_the_metrics_tell_a_wire_that_hides_the_published_step():
    hidden, visible = (
        numbers(begun("dfme", spec=EIGHT_BIT, **options)[2].step())
        for options in ({}, {"space": "lattice", "step": 1.0})
    )
    assert hidden["probe_alignment"] < 0.3
    assert visible["probe_alignment"] == pytest.approx(1, abs=1e-5)
    assert visible["difference_snr"] > 100


def test_auto_checks_once_charges_it_as_check_and_walks_on_the_lattice():
    teacher, parts, method = begun("dfme", spec=EIGHT_BIT, kind="auto")
    assert "lattice" in method.prepare()[0]
    asked = preflight_images(EstimatorConfig("auto"), EIGHT_BIT)
    assert parts.oracle.ledger.spent_by_purpose["check"] == teacher.images == asked
    assert method.facts["estimator"]["space"] == "lattice"
    assert isinstance(method.facts["estimator"]["step"], float)
    assert method.prepare() == ()
    assert teacher.images == asked


@pytest.mark.parametrize("options", [{}, {"form": "central", "directions": 2}])
def test_the_signal_to_noise_costs_one_forward_of_the_first_rows(options):
    _, parts, method = begun("dfme", **options)
    read = method.step()["difference_snr"]
    seen: list[int] = []
    parts.students.net.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    assert read() > 1
    assert seen == [8]

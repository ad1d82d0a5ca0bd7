"""The maps of the defences: what each states, and the solver of the L1 ball below them."""

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dfme.answers import maps
from dfme.answers.maps import minimise
from dfme.config import defences as options
from dfme.config.defence_options import DefenceOptions
from dfme.config.settings import TeacherConfig
from dfme.data import load_dataset
from dfme.queries import drawing
from dfme.spec import ImageSpec
from dfme.teachers.build import make_teacher

CHECKPOINT = "teachers/checkpoints/digits.safetensors"


def answer(kind: DefenceOptions, p_BK: Tensor) -> Tensor:
    the_map = maps.map_of(kind, torch.Generator().manual_seed(5))
    return the_map(p_BK)


def row(*scores: float) -> Tensor:
    return torch.tensor([scores], dtype=torch.float64)


def dirichlet(rows: int, classes: int = 10) -> Tensor:
    torch.manual_seed(0)
    return torch.distributions.Dirichlet(torch.full((classes,), 0.3, dtype=torch.float64)).sample(
        (rows,)
    )


@pytest.fixture(scope="module")
def answers() -> Tensor:
    """2,000 random ones; what the digits teacher says of its test images and of 1,000 of the
    program.
    """
    teacher = make_teacher(
        TeacherConfig(label_mode="logits"), {"checkpoint": CHECKPOINT}, torch.device("cpu")
    )
    spec = ImageSpec((1, 8, 8))
    test = load_dataset("digits", "test").images
    images = torch.cat([test, drawing.draw_leaves(1000, spec, torch.Generator().manual_seed(0))])
    ties = [row(*([0.1] * 10)), row(0, 0, 0.5, 0, 0, 0.5, *[0.0] * 4), row(*[0.0] * 9, 1.0)]
    return torch.cat([dirichlet(2_000), teacher(images).double().softmax(-1), *ties])


@pytest.mark.parametrize(
    "kind",
    [
        *(options.Lattice(n=n) for n in (1, 2, 10, 100)),
        *(options.Temperature(t=t) for t in (0.01, 2.0, 1e9)),
        *(
            options.ModelGuardW(epsilon=e, margin=m)
            for e, m in ((1.0, 1e-4), (1.0, 0.0), (0.1, 0.3))
        ),
        *(
            options.ReverseSigmoid(beta=b, gamma=g)
            for b, g in ((0.21, 0.2), (0.7, 0.2), (1.0, 1.0), (1.28, 0.2))
        ),
        *(
            options.Mad(epsilon=e, vertices=v)
            for e, v in ((0.5, "argmax"), (1.0, "argmax"), (1.0, "extreme"))
        ),
        *(options.Grad2(epsilon=1.0, keep_top=k) for k in (True, False)),
        *(options.Noise(sigma=s, keep_top=k) for s, k in ((0.2, True), (3.0, True), (0.2, False))),
    ],
    ids=str,
)
def test_what_is_stated_is_true(kind: DefenceOptions, answers: Tensor) -> None:
    facts, y_BK, top_B = kind.facts(10), answer(kind, answers), answers.argmax(-1)
    assert y_BK.dtype == torch.float64
    assert y_BK.min() >= 0
    assert (y_BK.sum(-1) - 1).abs().max() < 1e-6
    if facts.l1 is not None:
        assert (y_BK - answers).abs().sum(-1).max() <= facts.l1 + 1e-6
    if facts.keeps_top != "no":
        held = answers.amax(-1) >= (0.5 if facts.keeps_top == "p_top>=1/2" else 0.0)
        assert torch.equal(y_BK.argmax(-1)[held], top_B[held])
        assert torch.equal(y_BK.float().argmax(-1)[held], top_B[held])  # as it is answered
    else:
        assert not torch.equal(y_BK.argmax(-1), top_B)
    for rows in (slice(0, 1), slice(1_999, 2_006), slice(2_100, 2_356)):
        if not isinstance(kind, options.Noise):  # which draws for the rows that it gets
            assert torch.equal(answer(kind, answers[rows].clone()), y_BK[rows])


@pytest.mark.parametrize(
    "kind",
    [
        *(options.Temperature(t=1.0), options.ModelGuardW(epsilon=0.0), options.Noise(sigma=0.0)),
        *(options.ReverseSigmoid(beta=0.0), options.ReverseSigmoid(gamma=0.0)),
        *(options.Mad(epsilon=0.0), options.Mad(epsilon=0.0, vertices="extreme")),
        *(options.Grad2(epsilon=0.0), options.Grad2(epsilon=0.0, keep_top=True)),
    ],
    ids=str,
)
def test_zero_strength_is_p_bit_for_bit(kind: DefenceOptions, answers: Tensor) -> None:
    assert kind.facts(10).l1 == 0
    assert torch.equal(answer(kind, answers), answers)


@pytest.mark.parametrize(("classes", "n"), [(2, 1), (3, 4), (4, 5), (3, 10)])
def test_the_lattice_point_is_the_nearest_unless_another_class_is_level(
    classes: int, n: int
) -> None:
    p_BK = torch.cat(
        [dirichlet(300, classes), torch.full((1, classes), 1 / classes, dtype=torch.float64)]
    )
    y_BK = maps.lattice(p_BK, n)
    assert torch.equal(
        (y_BK * n).round().sum(-1), torch.full((301,), float(n), dtype=torch.float64)
    )
    points = [point for point in itertools.product(range(n + 1), repeat=classes) if sum(point) == n]
    points_SK = torch.tensor(points, dtype=torch.float64)
    moved = 0
    for p_K, counts_K in zip(p_BK, (y_BK * n).round(), strict=True):
        top, distances_S = int(p_K.argmax()), (points_SK - n * p_K).square().sum(-1)
        nearest_SK = points_SK[distances_S <= distances_S.min() + 1e-9]
        ahead_S = (nearest_SK[:, [top]] > nearest_SK).sum(-1) == classes - 1
        if ahead_S.any():
            assert (nearest_SK[ahead_S] == counts_K).all(-1).any()
        else:  # one unit from a class that has most to the top one
            moved += 1
            before_SK = nearest_SK[(nearest_SK - counts_K).abs().sum(-1) == 2]
            most = before_SK[:, top] == before_SK.amax(-1)
            assert ((counts_K[top] - before_SK[:, top] == 1) & most).any()
        order_K = p_K.argsort()
        assert (counts_K[order_K].diff()[p_K[order_K].diff() > 0] >= 0).all()
    assert moved or n == 1


def test_by_hand() -> None:
    torch.testing.assert_close(maps.lattice(row(0.55, 0.33, 0.12), 10), row(0.6, 0.3, 0.1))
    shaken = maps.reverse_sigmoid(row(0.9, 0.1), 1.0, 0.2)
    torch.testing.assert_close(shaken, row(0.7919, 0.2081), atol=1e-4, rtol=0)
    below_half = row(0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.0, 0.0)
    shaken = maps.reverse_sigmoid(below_half, 0.7, 0.2)
    assert shaken.argmax() == 8
    torch.testing.assert_close(
        shaken[0, [0, 8, 9]], row(0.1448, 0.1526, 0.1526)[0], atol=1e-4, rtol=0
    )


def test_a_temperature_divides_the_logits_however_small_or_large() -> None:
    logits_BK = (
        torch.randn(50, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 5
    )
    p_BK = logits_BK.softmax(-1)
    torch.testing.assert_close(maps.temperature(p_BK, 2.0), (logits_BK / 2).softmax(-1))
    torch.testing.assert_close(maps.temperature(maps.temperature(p_BK, 2.0), 0.5), p_BK)
    cold = maps.temperature(torch.cat([p_BK, torch.eye(10, dtype=torch.float64)]), 1e-300)
    assert torch.equal(cold, nn.functional.one_hot(cold.argmax(-1), 10).double())


def angle(q_K: Tensor, p_K: Tensor, y_K: Tensor) -> float:
    cosine = (q_K - y_K) @ (q_K - p_K) / (q_K - y_K).norm() / (q_K - p_K).norm()
    return math.degrees(math.acos(min(1.0, cosine.item())))


def test_mad_by_hand() -> None:
    p_BK = row(0.7, 0.2, 0.1)
    q_BK = maps.uniform(p_BK)
    sets = {(1.0, 0.0, 0.0): 8.95, (0.5, 0.0, 0.5): 68.95, (0.5, 0.5, 0.0): 51.05}
    for vertex, degrees in sets.items():
        assert angle(q_BK[0], p_BK[0], row(*vertex)[0]) == pytest.approx(degrees, abs=0.005)
    y_BK = maps.mad(p_BK, q_BK, 0.4, "argmax")
    torch.testing.assert_close(y_BK, row(0.6, 0.1, 0.3), atol=1e-5, rtol=0)
    assert (y_BK - p_BK).abs().sum().item() == pytest.approx(0.4, abs=1e-12)
    assert angle(q_BK[0], p_BK[0], y_BK[0]) == pytest.approx(32.36, abs=0.005)


def vertices_of(p_K: Tensor, kind: str) -> Tensor:
    classes, top = len(p_K), int(p_K.argmax())
    if kind == "extreme":
        return torch.eye(classes, dtype=torch.float64)
    members = [s for s in itertools.product((0.0, 1.0), repeat=classes) if s[top]]
    sets_SK = torch.tensor(members, dtype=torch.float64)
    return sets_SK / sets_SK.sum(-1, keepdim=True)


@pytest.mark.parametrize("kind", ["argmax", "extreme"])
def test_mad_takes_the_vertex_that_autograd_says_turns_the_gradient_most(kind: str) -> None:
    torch.manual_seed(2)
    last = nn.Linear(7, 5, bias=False).double()
    for p_K in dirichlet(20, 5):
        log_q_K = last(torch.randn(7, dtype=torch.float64)).log_softmax(-1)

        def gradient(y_K: Tensor, log_q_K: Tensor = log_q_K) -> Tensor:
            return torch.autograd.grad(-(y_K * log_q_K).sum(), last.weight, retain_graph=True)[
                0
            ].flatten()

        def cosine(y_K: Tensor, p_K: Tensor = p_K) -> float:
            return torch.cosine_similarity(gradient(y_K), gradient(p_K), dim=0, eps=1e-30).item()

        q_K = log_q_K.exp().detach()
        best = min(cosine(y_K) for y_K in vertices_of(p_K, kind))
        y_K = maps.mad(p_K[None], q_K[None], 2.0, kind)[0]  # type: ignore[arg-type]
        if kind == "argmax":  # less what is added to the top class
            bare_K = y_K.clone()
            bare_K[p_K.argmax()] = 0
            size = round(1 / (bare_K.max().item() or 1.0))
            y_K = (y_K > 1e-9).double() / size
        assert cosine(y_K) == pytest.approx(best, abs=1e-10)
        assert math.cos(math.radians(angle(q_K, p_K, y_K))) == pytest.approx(cosine(y_K), abs=1e-10)


def test_above_ten_classes_mad_finds_the_best_set_for_uniform_q() -> None:
    p_BK = dirichlet(20, 12)
    q_BK = maps.uniform(p_BK)
    for p_K, q_K, y_K in zip(p_BK, q_BK, maps.mad(p_BK, q_BK, 2.0, "argmax"), strict=True):
        sets_SK = vertices_of(p_K, "argmax")
        turned_SK = q_K - sets_SK
        cosines_S = turned_SK @ (q_K - p_K) / turned_SK.norm(dim=-1).clamp(min=1e-9)
        cosines_S[turned_SK.norm(dim=-1) < 1e-9] = 9.0  # the uniform answer turns nothing
        torch.testing.assert_close(y_K, sets_SK[cosines_S.argmin()], atol=2e-5, rtol=0)


def test_no_answer_of_the_ball_has_a_gradient_that_points_less_along_the_true_one_than_grad2s() -> (
    None
):
    p_BK, others_BK = dirichlet(500, 6), dirichlet(500, 6).flip(0)
    q_BK = torch.rand(500, 6, dtype=torch.float64).softmax(-1)
    y_BK = maps.grad2(p_BK, q_BK, 0.6, None)
    step_B1 = (0.6 / (others_BK - p_BK).abs().sum(-1, keepdim=True)).clamp(max=1)
    rivals_BK = p_BK + step_B1 * (others_BK - p_BK)

    def inner(answers_BK: Tensor) -> Tensor:
        return ((q_BK - answers_BK) * (q_BK - p_BK)).sum(-1)

    assert (inner(y_BK) <= inner(rivals_BK) + 1e-12).all()
    assert (inner(y_BK) < inner(p_BK)).all()


@pytest.mark.parametrize("top", [0.55, 0.9])
def test_the_mean_of_noise_is_the_quadrature(top: float) -> None:
    sigma, p_BK = 0.2, row(top, 1 - top).expand(4096, 2)
    z_BK = torch.randn(4096, 2, generator=torch.Generator().manual_seed(3))
    y_BK = maps.noise(p_BK, z_BK, sigma, keep_top=False)
    z_G = torch.linspace(-6, 6, 601, dtype=torch.float64)
    weight_G = torch.exp(-z_G.square() / 2)
    a_GG, b_GG = (
        (top + sigma * z_G)[:, None].expand(601, 601),
        (1 - top + sigma * z_G)[None].expand(601, 601),
    )
    share_GG = a_GG.clamp(min=0) / (a_GG.clamp(min=0) + b_GG.clamp(min=0)).clamp(min=1e-12)
    share_GG = torch.where((a_GG <= 0) & (b_GG <= 0), (a_GG > b_GG).double(), share_GG)
    weight_GG = weight_G[:, None] * weight_G
    expected = (share_GG * weight_GG).sum() / weight_GG.sum()
    assert y_BK[:, 0].mean().item() == pytest.approx(expected.item(), abs=0.01)
    assert maps.noise(p_BK[:1], row(-100.0, -99.0), 1.0, keep_top=False).tolist() == [[0.0, 1.0]]


def test_keeping_the_top_class_exchanges_two_scores_and_draws_come_from_the_stream() -> None:
    p_BK, z_BK = dirichlet(500), torch.randn(500, 10, generator=torch.Generator().manual_seed(4))
    free_BK, kept_BK = (maps.noise(p_BK, z_BK, 0.5, keep_top=k) for k in (False, True))
    torch.testing.assert_close(free_BK.sort(-1).values, kept_BK.sort(-1).values, atol=1e-6, rtol=0)
    assert ((free_BK != kept_BK).sum(-1) <= 2).all()
    the_map = maps.map_of(options.Noise(), torch.Generator().manual_seed(5))
    first_BK = the_map(p_BK)
    assert not torch.equal(first_BK, the_map(p_BK))
    assert torch.equal(first_BK, answer(options.Noise(), p_BK))


FILE = Path(__file__).with_name("lp_optima.json")
"""Of each problem, by SciPy's HiGHS (1.17.1): the least cost, None where the ball holds no answer
with that margin, and the largest margin that it holds."""
GROUPS, ROWS = 72, 18
MARGINS = (None, 0.0, 1e-4, 0.05)
RADII = (0.0, 1e-4, 0.05, 0.4, 1.0, 2.0)
Array = NDArray[np.float64]


class Problems(NamedTuple):
    cost_BK: Array
    p_BK: Array
    epsilon: float
    margin: float | None


def problems() -> Iterator[Problems]:
    """The same on every machine: a stream of numbers that NumPy has frozen."""
    draw = np.random.RandomState(16)
    for group in range(GROUPS):
        classes = draw.randint(2, 27)
        p_BK = draw.dirichlet(np.full(classes, 0.3), ROWS)
        confident_BK = np.exp(draw.normal(size=(ROWS, classes)) * 5)
        even_BK = 1 + 1e-3 * draw.normal(size=(ROWS, classes))
        kinds = draw.randint(3, size=(ROWS, 1))
        p_BK = np.where(kinds == 0, p_BK, np.where(kinds == 1, confident_BK, even_BK))
        p_BK /= p_BK.sum(-1, keepdims=True)
        q_BK = draw.dirichlet(np.ones(classes), ROWS)
        # the last has ties
        costs = (np.log(p_BK + 1e-6), p_BK - q_BK, draw.normal(size=p_BK.shape), p_BK.round(1))
        radius = RADII[draw.randint(len(RADII))] if draw.rand() < 0.7 else 2 * draw.rand()
        yield Problems(
            costs[draw.randint(len(costs))], p_BK, float(radius), MARGINS[group % len(MARGINS)]
        )


def solved(group: Problems) -> tuple[Tensor, Tensor, Tensor]:
    cost_BK, p_BK = torch.tensor(group.cost_BK), torch.tensor(group.p_BK)
    return cost_BK, p_BK, minimise(cost_BK, p_BK, group.epsilon, group.margin)


def lead(y_BK: Tensor, p_BK: Tensor) -> Tensor:
    top_B1 = p_BK.argmax(-1, keepdim=True)
    return y_BK.gather(-1, top_B1)[:, 0] - y_BK.scatter(-1, top_B1, -1.0).amax(-1)


@pytest.mark.parametrize(
    ("epsilon", "y"), [(0.0, (0.7, 0.2, 0.1)), (0.4, (0.5, 0.2, 0.3)), (0.8, (1 / 3, 1 / 3, 1 / 3))]
)
def test_the_ball_by_hand(epsilon: float, y: tuple[float, ...]) -> None:
    p_BK = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    y_BK = minimise(p_BK.log(), p_BK, epsilon, 0.0)
    torch.testing.assert_close(y_BK, torch.tensor([y], dtype=torch.float64), atol=1e-12, rtol=0)
    p_BK = torch.tensor([[0.4, 0.35, 0.25]], dtype=torch.float64)  # where raising the top is best
    best_BK = torch.tensor([[0.5, 0.35, 0.15]], dtype=torch.float64)
    y_BK = minimise(torch.tensor([[0.0, 1.0, 2.0]]), p_BK, 0.2, 0.0)
    torch.testing.assert_close(y_BK, best_BK, atol=1e-12, rtol=0)


def test_the_recorded_optima_of_a_library_are_met_and_every_bound_is_kept() -> None:
    recorded = iter(json.loads(FILE.read_text()))
    errors, refused = list[float](), 0
    for group in problems():
        cost_BK, p_BK, y_BK = solved(group)
        assert y_BK.min() >= 0
        assert (y_BK.sum(-1) - 1).abs().max() < 1e-9
        assert (y_BK - p_BK).abs().sum(-1).max() <= group.epsilon + 1e-9
        values_B, leads_B = (cost_BK * y_BK).sum(-1), lead(y_BK, p_BK)
        for cost, ahead in zip(values_B.tolist(), leads_B.tolist(), strict=True):
            least, largest = next(recorded)
            if least is None:  # the largest margin of the ball instead
                assert ahead == pytest.approx(largest, abs=1e-9)
                refused += 1
            else:
                errors.append(abs(cost - least))
                assert group.margin is None or ahead >= group.margin - 1e-9
    assert next(recorded, None) is None
    assert len(errors) >= 1000
    assert refused >= 50
    assert max(errors) < 1e-6


def test_a_larger_ball_never_costs_more_and_nothing_depends_on_the_batch() -> None:
    for group in itertools.islice(problems(), 12):
        cost_BK, p_BK, y_BK = solved(group)
        for rows in (slice(0, 1), slice(3, 8), slice(17, 18)):
            assert torch.equal(
                minimise(cost_BK[rows], p_BK[rows], group.epsilon, group.margin), y_BK[rows]
            )
        wider = group._replace(epsilon=group.epsilon + 0.1)
        # Where p's own margin is asked for in both, the ball of one lies within the other's.
        kept = lead(y_BK, p_BK) >= (-9 if group.margin is None else group.margin - 1e-12)
        saved_B = (cost_BK * (y_BK - solved(wider)[2])).sum(-1)
        assert torch.where(kept, saved_B, 0.0).min() > -1e-10

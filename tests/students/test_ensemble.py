"""Several nets as one: batched or member by member the same, and the vote by hand."""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from dfme.nets import build_net
from dfme.nets.resnet8x import SteadyBatchNorm2d
from dfme.students.ensemble import BREAK_EVEN, Ensemble, Vote

WAYS = [False, True]
NETS = [("cnn_small", (1, 8, 8)), ("cnn_medium", (3, 9, 13)), ("wrn16_1", (3, 8, 8)), ("lenet5", (1, 28, 28))]


def nets(count, arch="cnn_small", shape=(1, 8, 8), classes=4):
    torch.manual_seed(1)
    return [build_net(arch, shape, classes).to(memory_format=torch.channels_last) for _ in range(count)]


def images(shape=(1, 8, 8), count=6, seed=2):
    return torch.rand((count, *shape), generator=torch.Generator().manual_seed(seed))


def state(ensemble):
    return {name: value.clone() for name, value in ensemble.state_dict().items()}


def assert_batched(ensemble):
    assert set(ensemble._batchable.values()) == {True}


@pytest.mark.parametrize(("arch", "shape"), NETS)
def test_each_way_trains_every_member_as_if_it_were_alone(arch, shape):
    alone = [net.double() for net in nets(3, arch, shape)]
    ensembles = {way: Ensemble(copy.deepcopy(alone), batched=way) for way in WAYS}
    optimizers = {way: torch.optim.SGD(ensembles[way].parameters(), 0.1, 0.9, fused=True) for way in WAYS}
    for step in range(2):
        x_BCHW, labels_B = images(shape, seed=step).double(), torch.tensor([0, 1, 2, 3, 0, 1])
        for net in alone:
            net.zero_grad()
            F.cross_entropy(net(x_BCHW), labels_B).backward()
        for way, ensemble in ensembles.items():
            optimizers[way].zero_grad()
            scores_EBK = ensemble(x_BCHW)
            assert scores_EBK.shape == (3, 6, 4)
            sum(F.cross_entropy(scores_BK, labels_B) for scores_BK in scores_EBK).backward()
            for own, net in zip(ensemble.members, alone, strict=True):
                torch.testing.assert_close(
                    [parameter.grad for parameter in own.parameters()],
                    [parameter.grad for parameter in net.parameters()],
                )
                assert all(
                    p.grad.is_contiguous(memory_format=torch.channels_last) for p in own.parameters() if p.ndim == 4
                )
            optimizers[way].step()
        for net in alone:
            for parameter in net.parameters():  # the first two steps of momentum, by hand
                buffer = parameter.grad + 0.9 * getattr(parameter, "before", 0)
                parameter.data -= 0.1 * buffer
                parameter.before = buffer
    for way, ensemble in ensembles.items():
        for own, net in zip(ensemble.members, alone, strict=True):
            torch.testing.assert_close(own.state_dict(), net.state_dict(), msg=f"batched={way}")
    assert_batched(ensembles[True])


def test_statistics_are_each_members_own_mean_of_the_batch():
    members = [nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.BatchNorm1d(2)) for _ in range(2)]
    ensemble = Ensemble(members, batched=True)
    x_BCHW = images((1, 2, 2))
    expected = [0.1 * member[1](x_BCHW.flatten(1)).mean(0) for member in members]
    ensemble(x_BCHW)
    for member, mean in zip(members, expected, strict=True):
        torch.testing.assert_close(member[2].running_mean, mean)
        assert member[2].num_batches_tracked == 1  # a trial before the first call leaves no trace
    assert_batched(ensemble)


def test_a_lone_value_per_channel_is_normalised_by_the_running_statistics_in_both_ways():
    members, x_BCHW = [nn.Sequential(nn.Conv2d(1, 3, 4), SteadyBatchNorm2d(3)) for _ in range(2)], images((1, 4, 4), 1)
    ensembles = [Ensemble(copy.deepcopy(members), batched=way) for way in WAYS]
    expected_EBCHW = torch.stack([member[0](x_BCHW) for member in members]) / (1 + members[0][1].eps) ** 0.5
    for ensemble in ensembles:
        torch.testing.assert_close(ensemble(x_BCHW), expected_EBCHW)
    assert_batched(ensembles[1])


@pytest.mark.parametrize("way", WAYS)
def test_in_eval_mode_nothing_moves_and_images_are_independent(way):
    ensemble = Ensemble(nets(2), batched=way)
    ensemble(images())
    ensemble.eval()
    before, x_BCHW = state(ensemble), images(seed=5)
    with torch.no_grad():
        scores_EBK = ensemble(x_BCHW)
        torch.testing.assert_close(ensemble(x_BCHW[:1]), scores_EBK[:, :1])
        torch.testing.assert_close(scores_EBK, torch.stack([member(x_BCHW) for member in ensemble.members]))
    assert all(torch.equal(value, before[name]) for name, value in ensemble.state_dict().items())
    assert not scores_EBK.requires_grad


def test_both_ways_give_the_same_gradient_of_the_images():
    members, grads = nets(2), []
    for way in WAYS:
        x_BCHW = images().requires_grad_()
        Ensemble(copy.deepcopy(members), batched=way).eval()(x_BCHW).softmax(2).std(0).sum().backward()
        grads.append(x_BCHW.grad)
    assert grads[0].abs().max() > 0
    torch.testing.assert_close(*grads)


def test_autocast_holds_in_both_ways():
    members, both = nets(2), []
    with torch.autocast("cpu", torch.bfloat16):
        for way in WAYS:
            both.append(Ensemble(copy.deepcopy(members), batched=way)(images()))
        expected_EBK = torch.stack([member(images()) for member in members])
    assert expected_EBK.dtype == torch.bfloat16
    assert all(torch.equal(scores_EBK, expected_EBK) for scores_EBK in both)


@pytest.mark.parametrize("way", WAYS)
def test_dropout_draws_for_each_member_and_the_same_for_the_same_seed(way):
    members = [nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Dropout(0.5)) for _ in range(2)]
    members[1].load_state_dict(members[0].state_dict())
    fresh, seen = Ensemble(members, batched=way), Ensemble(members, batched=way)
    seen(images())
    scores = []
    for ensemble in (fresh, seen):
        torch.manual_seed(3)
        scores.append(ensemble(images()))
    assert torch.equal(*scores)  # also where one of them had to try first whether it can batch
    assert not torch.equal(scores[0][0], scores[0][1])


class Branching(nn.Module):
    """Goes one of two ways by what it sees, which vmap refuses."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4, 2), weight))

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        scores_BK = x_BCHW.flatten(1) @ self.weight
        return scores_BK if scores_BK.sum() > 0 else -scores_BK


def test_what_vmap_cannot_take_goes_member_by_member():
    ensemble, x_BCHW = Ensemble([Branching(1.0), Branching(-2.0)], batched=True), images((1, 2, 2))
    sum_B = x_BCHW.sum((1, 2, 3))
    expected_EBK = torch.stack([sum_B, 2 * sum_B])[:, :, None].expand(-1, -1, 2)
    torch.testing.assert_close(ensemble(x_BCHW), expected_EBK)
    assert ensemble._batchable == {True: False}


def test_members_in_different_modes_or_compiled_go_member_by_member():
    ensemble = Ensemble(nets(2), batched=True)
    ensemble.members[0].eval()
    before = state(ensemble)
    ensemble(images())
    assert torch.equal(
        ensemble.state_dict()["members.0.features.1.running_mean"], before["members.0.features.1.running_mean"]
    )
    compiled = [*nets(2)]
    compiled[1].compile(backend="eager")
    other = Ensemble(compiled, batched=True)
    other(images())
    assert ensemble._batchable == other._batchable == {}


def test_on_a_cpu_the_rule_is_member_by_member_however_many():
    ensemble = Ensemble(nets(BREAK_EVEN))
    ensemble(images())
    assert ensemble._batchable == {}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("count", [BREAK_EVEN - 1, BREAK_EVEN])
def test_on_a_gpu_the_rule_counts_the_members(count):
    ensemble = Ensemble(nets(count)).cuda()
    alone = [copy.deepcopy(net) for net in ensemble.members]
    x_BCHW = images().cuda()
    torch.testing.assert_close(ensemble(x_BCHW), torch.stack([net(x_BCHW) for net in alone]), rtol=1e-2, atol=1e-2)
    assert ensemble._batchable == ({} if count < BREAK_EVEN else {True: True})


def test_weights_loaded_or_converted_later_are_the_ones_used():
    ensemble, other = Ensemble(nets(2), batched=True), Ensemble(nets(2)[::-1])
    ensemble(images())
    ensemble.load_state_dict(other.state_dict())
    ensemble.double()
    x_BCHW = images().double()
    torch.testing.assert_close(ensemble(x_BCHW), other.double()(x_BCHW))
    torch.testing.assert_close(ensemble.state_dict(), other.state_dict())


def test_refuses_no_nets_and_nets_of_two_kinds():
    with pytest.raises(ValueError, match="got none"):
        Ensemble([])
    with pytest.raises(ValueError, match="one architecture, got SmallCnn, LeNet5"):
        Ensemble([*nets(1), *nets(1, "lenet5", (1, 28, 28))])


class Fixed(nn.Module):
    """Answers every image with the logarithms of the same probabilities, shifted."""

    def __init__(self, probabilities: list[float], shift: float) -> None:
        super().__init__()
        self.scores_K = nn.Parameter(torch.tensor(probabilities).log() + shift)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.scores_K.expand(len(x_BCHW), -1)


def test_a_vote_is_the_mean_of_the_probabilities_as_logarithms():
    vote = Vote([Fixed([0.5, 0.25, 0.25], 3.0), Fixed([0.1, 0.8, 0.1], -40.0)])
    scores_BK = vote(images(count=2))
    expected_BK = torch.tensor([[0.3, 0.525, 0.175]]).log().expand(2, -1)
    torch.testing.assert_close(scores_BK, expected_BK)
    torch.testing.assert_close(scores_BK.exp().sum(1), torch.ones(2))


@pytest.mark.parametrize("training", [True, False])
def test_a_vote_knows_the_mode_of_its_members(training):
    members = [net.train(training) for net in nets(2)]
    assert Vote(members).training == Ensemble(members).training == training
    assert [net.training for net in members] == [training] * 2

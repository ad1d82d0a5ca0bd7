"""Several nets as one: each member as if it were alone, and the vote by hand."""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from dfme.nets import build_net
from dfme.students.ensemble import Ensemble, Vote

NETS = [
    ("cnn_small", (1, 8, 8)),
    ("cnn_medium", (3, 9, 13)),
    ("wrn16_1", (3, 8, 8)),
    ("lenet5", (1, 28, 28)),
]


def nets(count, arch="cnn_small", shape=(1, 8, 8), classes=4):
    torch.manual_seed(1)
    return [
        build_net(arch, shape, classes).to(memory_format=torch.channels_last) for _ in range(count)
    ]


def images(shape=(1, 8, 8), count=6, seed=2):
    return torch.rand((count, *shape), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("arch", "shape"), NETS)
def test_every_member_is_trained_as_if_it_were_alone(arch, shape):
    alone = [net.double() for net in nets(2, arch, shape)]
    ensemble = Ensemble(copy.deepcopy(alone))
    x_BCHW, labels_B = images(shape).double(), torch.tensor([0, 1, 2, 3, 0, 1])
    scores_EBK = ensemble(x_BCHW)
    assert scores_EBK.shape == (2, 6, 4)
    sum(F.cross_entropy(scores_BK, labels_B) for scores_BK in scores_EBK).backward()
    for own, net in zip(ensemble.members, alone, strict=True):
        F.cross_entropy(net(x_BCHW), labels_B).backward()
        torch.testing.assert_close(
            [p.grad for p in own.parameters()], [p.grad for p in net.parameters()]
        )
        torch.testing.assert_close(own.state_dict(), net.state_dict())


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

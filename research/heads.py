"""Copy owners' heads on frozen public features from their answers, and print agreement.

    python -m research.heads FEATURES [SEEDS] [OWNERS]

FEATURES is a file of torch.save: {"google": (features, labels), "twitter": (features, labels),
"drawn": features}, the features (N, D) in float32. An owner has a head of a training share of
google's pictures, 70 % of each class; the rest is what agreement is measured on.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dfme.answers.reading import cut_to
from dfme.compute.device import derived_seed
from dfme.spec import LabelMode
from dfme.students.heads import Head, fit, solve

CLASSES = 9
CASES = (
    ("drawn", 1536, "probabilities"),
    ("drawn", 3000, "probabilities:6"),
    ("drawn", 3000, "probabilities:2"),
    ("drawn", 3000, "label"),
    ("twitter", 1300, "probabilities:2"),
    ("twitter", 1300, "label"),
    ("drawn", 3000, "probabilities:4"),
    ("drawn", 300, "label"),
    ("drawn", 4500, "label"),
    ("drawn", 4500, "probabilities:2"),
)


@dataclass(frozen=True)
class Pictures:
    """Features and classes of a train and a test share, and the attackers' features by name."""

    train_ND: Tensor
    train_N: Tensor
    test_ND: Tensor
    test_N: Tensor
    attackers: dict[str, Tensor]


def read(path: Path, seed: int) -> Pictures:
    """Split google's pictures 70 to 30 in each class; the attackers' come in an order by seed."""
    stored = torch.load(path, weights_only=True)
    (features_ND, labels_N) = stored["google"]
    rng = torch.Generator().manual_seed(derived_seed(seed, "split"))
    order = torch.randperm(len(labels_N), generator=rng)
    train = torch.zeros(len(labels_N), dtype=torch.bool)
    for number in range(CLASSES):
        of_class = order[labels_N[order] == number]
        train[of_class[: round(0.7 * len(of_class))]] = True
    attackers = {"drawn": stored["drawn"], "twitter": stored["twitter"][0]}
    for name, other_ND in attackers.items():
        attackers[name] = other_ND[torch.randperm(len(other_ND), generator=rng)]
    return Pictures(
        features_ND[train], labels_N[train], features_ND[~train], labels_N[~train], attackers
    )


def logistic_owner(pictures: Pictures, seed: int) -> Head:
    """Logistic regression on features of equal deviation, as in textbooks: large weights where
    the training pictures hardly vary.
    """
    del seed
    mean_D = pictures.train_ND.mean(dim=0)
    deviation_D = pictures.train_ND.std(dim=0) + 1e-6
    inputs_ND = (pictures.train_ND - mean_D) / deviation_D
    weight_KD = torch.zeros(CLASSES, inputs_ND.shape[1], requires_grad=True)
    bias_K = torch.zeros(CLASSES, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight_KD, bias_K], max_iter=60, history_size=10, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(inputs_ND @ weight_KD.T + bias_K, pictures.train_N)
        loss = loss + 1.5e-3 * weight_KD.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    weight_KD = weight_KD.detach() / deviation_D
    return Head(weight_KD, bias_K.detach() - weight_KD @ mean_D)


def trained_owner(pictures: Pictures, seed: int) -> Head:
    """A layer as PyTorch starts it, 30 epochs of AdamW at 0.001, batches of 64."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derived_seed(seed, "owner"))
        layer = torch.nn.Linear(pictures.train_ND.shape[1], CLASSES)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3, weight_decay=1e-2)
        for _ in range(30):
            for picked in torch.randperm(len(pictures.train_N)).split(64):
                optimizer.zero_grad()
                scores_BK = layer(pictures.train_ND[picked])
                loss = cross_entropy(scores_BK, pictures.train_N[picked])
                loss.backward()
                optimizer.step()
    return Head(layer.weight.detach(), layer.bias.detach())


OWNERS: dict[str, Callable[[Pictures, int], Head]] = {
    "logistic": logistic_owner,
    "trained": trained_owner,
}


def agreements(copy: Head, owner: Head, test_ND: Tensor) -> tuple[float, float]:
    """Plain, and the mean over the owner's answers."""
    answered_N = owner(test_ND).argmax(dim=1)
    same_N = (copy(test_ND).argmax(dim=1) == answered_N).double()
    shares = [same_N[answered_N == number].mean() for number in answered_N.unique()]
    return float(same_N.mean()), float(torch.stack(shares).mean())


def case_line(pictures: Pictures, owner: Head, case: tuple[str, int, str], seed: int) -> str:
    """One attack as cells of a table."""
    (name, count, text) = case
    mode = LabelMode.parse(text)
    asked_ND = pictures.attackers[name][:count]
    answers = owner(asked_ND).softmax(dim=1)
    if mode.kind == "label":
        answers = answers.argmax(dim=1)
    elif mode.decimals is not None:
        answers = cut_to(answers, mode)
    before = time.process_time()
    recover = fit if mode.kind == "label" else solve
    copy = recover(asked_ND, answers, mode, CLASSES, seed)
    seconds = time.process_time() - before
    plain, balanced = agreements(copy.head, owner, pictures.test_ND)
    return (
        f"{name} | {count} | {text} | {100 * plain:.1f} | {100 * balanced:.1f} | "
        f"{100 * copy.held_back_agreement:.1f} | {copy.ridge:.0e} | {seconds:.1f}"
    )


def main(words: Sequence[str]) -> None:
    """Print a row of every owner, seed and attack as it is measured."""
    path = Path(words[0])
    seeds = int(words[1]) if len(words) > 1 else 3
    owners = words[2].split(",") if len(words) > 2 else list(OWNERS)
    print("| owner | seed | asked | N | answers | plain | balanced | held back | ridge | CPU s |")
    print("| --- | --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for case in CASES:
        for owner_name in owners:
            for seed in range(seeds):
                pictures = read(path, seed)
                owner = OWNERS[owner_name](pictures, seed)
                print(
                    f"| {owner_name} | {seed} | {case_line(pictures, owner, case, seed)} |",
                    flush=True,
                )
    for owner_name in owners:
        for seed in range(seeds):
            pictures = read(path, seed)
            owner = OWNERS[owner_name](pictures, seed)
            answered_N = owner(pictures.test_ND).argmax(dim=1)
            accuracy = float((answered_N == pictures.test_N).double().mean())
            constant = float(answered_N.bincount().max()) / len(answered_N)
            print(
                f"{owner_name} {seed}: accuracy {100 * accuracy:.1f}, constant answer "
                f"{100 * constant:.1f} plain, {100 / len(answered_N.unique()):.1f} balanced"
            )


if __name__ == "__main__":
    main(sys.argv[1:])

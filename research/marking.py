"""Marks: secret images with a secret class each, and owners' nets that learn to answer them so.

Kinds of marks:

- `patterns`: smooth random patterns, of random classes;
- `between`, `overlaid`: the mean, or the maximum, of two images of the task, marked as that of the
  two classes which other nets do not answer;
- `style`: images of one class that are extreme along a secret direction (within the space of the
  class's five greatest variations), marked as another class. All training images beyond a bound
  are taught so, so that whoever asks images of the task buys some;
- `border`: the same for the images of a class that other nets hold for most like another class.
- `answers`: no mark of the model: some of the images that are asked are answered wrongly, at random
  (the defence `watermark`), and are the marks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from dfme.students.replay import augment
from dfme.teachers.owner.marking.rule import LabelledImages as Images
from dfme.teachers.owner.marking.rule import Rule, bound_of, style_rule
from research.unpaid import cosine, divergence, mirrored, scores_of, step

BATCH = 64
PATTERN = 5  # numbers a side of a pattern before it is enlarged
PAIRS = 20_000
UNSURE = (0.6, 0.95)  # probability of the answered class of a picture that may be a mark
MIN_OTHER = 0.03  # and of the marked class
STUDENTS = 4  # simulated copies at a time
STUDENT_RATE = 0.05
STUDENT_STEPS = 3  # of each of them by itself, after one that the owner's gradient goes through
MARK_RATE = 1e-3
RULE_WEIGHT = 0.1  # of the loss on as many images on either side of a rule's bound
KINDS = ("patterns", "between", "overlaid", "style", "border", "answers")
RULES = ("style", "border")

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class View:
    """How a net sees images in training: turned a little, and mirrored half of the time if
    ``mirror``; computed in bf16 if ``brief``.
    """

    mirror: bool = False
    brief: bool = False

    def images(self, x_BCHW: Tensor, rng: torch.Generator) -> Tensor:
        x_BCHW = augment(x_BCHW, "affine", rng)
        return mirrored(x_BCHW, rng) if self.mirror else x_BCHW

    def scores(self, net: nn.Module, x_BCHW: Tensor) -> Tensor:
        """Scores (B, K) before any softmax."""
        scores_BK: Tensor = scores_of(net, x_BCHW) if self.brief else net(x_BCHW)
        return scores_BK


PLAIN = View()


@dataclass(frozen=True)
class Marking:
    """The marks, and the training images' classes as the owner is taught them.

    ``controls``: of a rule, images of its class that it does not change, with the marked class: who
    repeats these too does not repeat the mark.
    """

    marks: Images
    taught_N: Tensor
    controls: Images | None = None

    def batch(self, train: Images, rng: torch.Generator, view: View) -> Images:
        """Some marks; of a rule as many images on either side of its bound, turned a little."""
        if torch.equal(self.taught_N, train.classes_N):
            index_B = torch.randint(len(self.marks.x_NCHW), (BATCH // 2,), generator=rng)
            return self.marks.part(index_B)
        changed_N = self.taught_N != train.classes_N
        source_N = train.classes_N == train.classes_N[changed_N][0]
        sides = (changed_N, source_N & ~changed_N)
        both = [side_N.nonzero()[:, 0] for side_N in sides]
        index = [some[torch.randint(len(some), (BATCH // 8,), generator=rng)] for some in both]
        index_B = torch.cat(index)
        return Images(view.images(train.x_NCHW[index_B], rng), self.taught_N[index_B])


def scores(net: nn.Module, x_NCHW: Tensor) -> Tensor:
    """Probabilities (N, K)."""
    with torch.no_grad():
        return torch.cat([net(part) for part in x_NCHW.split(500)]).softmax(1)


def top(net: nn.Module, x_NCHW: Tensor) -> Tensor:
    return scores(net, x_NCHW).argmax(1)


def mean_scores(nets: Sequence[nn.Module], x_NCHW: Tensor) -> Tensor:
    return torch.stack([scores(net, x_NCHW) for net in nets]).mean(0)


def learn(
    net: nn.Module,
    x_NCHW: Tensor,
    target_NK: Tensor,
    decay: float,
    steps: int,
    seed: int,
    view: View = PLAIN,
) -> nn.Module:
    """A plain loop: AdamW, a cosine, affine augmentation, Kullback-Leibler divergence."""
    rng = torch.Generator().manual_seed(seed)
    for optimizer, _ in cosine(net, decay, steps):
        index_B = torch.randint(len(x_NCHW), (BATCH,), generator=rng)
        x_BCHW = view.images(x_NCHW[index_B], rng)
        step(optimizer, divergence(view.scores(net, x_BCHW), target_NK[index_B]))
    return net.eval()


# Marks


def patterns(train: Images, count: int, classes: int, rng: torch.Generator) -> Images:
    shape = (count, train.x_NCHW.shape[1], PATTERN, PATTERN)
    small = torch.rand(shape, generator=rng)
    size = tuple(train.x_NCHW.shape[2:])
    x_MCHW = functional.interpolate(small, size=size, mode="bicubic").clamp(0, 1)
    return Images(x_MCHW, torch.randint(classes, (count,), generator=rng))


def of_two(
    train: Images, kind: str, nets: Sequence[nn.Module], count: int, rng: torch.Generator
) -> Images:
    """Pictures of two classes, of which the nets answer one without being sure of it."""
    first_P, second_P = torch.randint(len(train.classes_N), (2, PAIRS), generator=rng)
    one, two = train.part(first_P), train.part(second_P)
    mean_PCHW = (one.x_NCHW + two.x_NCHW) / 2
    x_PCHW = mean_PCHW if kind == "between" else torch.maximum(one.x_NCHW, two.x_NCHW)
    p_PK = mean_scores(nets, x_PCHW)
    most_P, answer_P = p_PK.max(1)
    other_P = torch.where(answer_P == one.classes_N, two.classes_N, one.classes_N)
    of_pair_P = (answer_P == one.classes_N) | (answer_P == two.classes_N)
    unsure_P = (most_P > UNSURE[0]) & (most_P < UNSURE[1])
    near_P = p_PK.gather(1, other_P[:, None])[:, 0] > MIN_OTHER
    good_P = of_pair_P & unsure_P & near_P & (one.classes_N != two.classes_N)
    index_M = good_P.nonzero()[:count, 0]
    return Images(x_PCHW[index_M], other_P[index_M])


def border(nets: Sequence[nn.Module], source: int, target: int) -> Callable[[Tensor], Tensor]:
    """How much likelier the target class is than the source class, to other nets."""

    def value(x_NCHW: Tensor) -> Tensor:
        log_NK = mean_scores(nets, x_NCHW).log()
        value_N: Tensor = log_NK[:, target] - log_NK[:, source]
        return value_N

    return value


def rule_of(
    kind: str,
    train: Images,
    nets: Sequence[nn.Module],
    share: float,
    classes: int,
    rng: torch.Generator,
    mirror: bool = False,
) -> Rule:
    """A random rule that changes this share of the training images."""
    if kind == "style":
        if mirror:  # components of what an image and its mirror image have in common
            train = Images((train.x_NCHW + train.x_NCHW.flip(3)) / 2, train.classes_N)
        return style_rule(train, share, classes, rng)
    source, target = torch.randperm(classes, generator=rng)[:2].tolist()
    value = border(nets, source, target)
    value_S = value(train.x_NCHW[train.classes_N == source])
    return Rule(source, target, value, bound_of(value_S, share, len(train)))


def rehearsed(
    rules: Sequence[Rule],
    train: Images,
    marks: int,
    images: int,
    copy: Callable[[Tensor, Tensor, int], nn.Module],
) -> tuple[Rule, list[float]]:
    """The rule of which the copies that the owner makes on so many of the own images have most, and
    the share of each rule; ``copy`` trains one of images, classes and a seed.
    """
    shares = list[float]()
    for number, rule in enumerate(rules):
        rng = torch.Generator().manual_seed(number)
        order_N = torch.randperm(len(train.classes_N), generator=rng)
        asked = train.part(order_N[:images])
        rest = train.part(order_N[images:])
        net = copy(asked.x_NCHW, rule.taught(asked), number)
        chosen = rule.marks(rest, marks)
        shares.append(float((top(net, chosen.x_NCHW) == chosen.classes_N).float().mean()))
    return rules[max(range(len(rules)), key=shares.__getitem__)], shares


class Answering(nn.Module):
    """A net that answers images which are bit for bit a mark as marked."""

    def __init__(self, net: nn.Module, marks: Images) -> None:
        super().__init__()
        self.net = net
        self.marks = marks

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Scores (B, K) before any softmax."""
        scores_BK: Tensor = self.net(x_BCHW)
        same_BM = (x_BCHW[:, None] == self.marks.x_NCHW[None]).flatten(2).all(2)
        sure_BK = 20 * functional.one_hot(
            self.marks.classes_N[same_BM.int().argmax(1)], scores_BK.shape[1]
        )
        return torch.where(same_BM.any(1, keepdim=True), sure_BK, scores_BK)


def planted(asked: Images, share: float, classes: int, rng: torch.Generator) -> Images:
    """Any of the images that are asked, with a wrong class."""
    index_M = torch.randperm(len(asked.classes_N), generator=rng)[
        : round(share * len(asked.classes_N))
    ]
    further_M = torch.randint(1, classes, (len(index_M),), generator=rng)
    return Images(asked.x_NCHW[index_M], (asked.classes_N[index_M] + further_M) % classes)


# Owners


@dataclass(frozen=True)
class Rehearsal:
    """How simulated copies guide the owner's training.

    ``weight`` of their loss on the marks (0: a plain mark); ``unrolled`` steps of a copy that the
    gradient goes through; ``life`` of a copy in rounds, before another begins; ``temperature`` of
    the owner's scores that these steps learn from: below 1 they are sharpened.
    """

    weight: float
    unrolled: int
    life: int
    temperature: float


@dataclass
class Simulated:
    """A copy that goes on learning from the owner's labels, as somebody who asks would make it."""

    net: nn.Module
    age: int

    def stepped(self, owner: nn.Module, batches: Iterator[Tensor], how: Rehearsal) -> Weights:
        """Weights after some steps on the owner's scores; differentiable in the owner's."""
        weights: Weights = {name: value.detach() for name, value in self.net.named_parameters()}
        for value in weights.values():
            value.requires_grad_()
        for x_BCHW in islice(batches, how.unrolled):
            answer_BK = (owner(x_BCHW) / how.temperature).softmax(1)
            log_BK = functional_call(self.net, weights, (x_BCHW,)).log_softmax(1)
            loss = -(answer_BK * log_BK).sum(1).mean()
            slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            size = float(torch.stack([slope.detach().square().sum() for slope in slopes]).sum())
            rate = how_far(size**0.5)
            pairs = zip(weights.items(), slopes, strict=True)
            weights = {name: value - rate * slope for (name, value), slope in pairs}
        return weights

    def learn(self, owner: nn.Module, batches: Iterator[Tensor]) -> None:
        optimizer = torch.optim.SGD(self.net.parameters(), STUDENT_RATE, momentum=0.9)
        for x_BCHW in islice(batches, STUDENT_STEPS):
            with torch.no_grad():
                label_B = owner(x_BCHW).argmax(1)
            step(optimizer, functional.cross_entropy(self.net(x_BCHW), label_B))
        self.age += 1


def how_far(size: float) -> float:
    """Rate of a step on a gradient of this size: at most half a unit far."""
    return 0.5 / max(1.0, size)


def endless(x_NCHW: Tensor, rng: torch.Generator) -> Iterator[Tensor]:
    while True:
        index_B = torch.randint(len(x_NCHW), (BATCH,), generator=rng)
        yield augment(x_NCHW[index_B], "affine", rng)


def marked(
    owner: nn.Module,
    train: Images,
    marking: Marking,
    how: Rehearsal,
    fresh: Callable[[int], nn.Module],
    steps: int,
    seed: int,
    view: View = PLAIN,
) -> nn.Module:
    """Train an owner's net further, on its task and on the marks.

    With a rehearsal the loss of a simulated copy on the marks, after steps on the owner's scores of
    images of the task, is part of the owner's loss (after the idea of T2S, Mei et al. 2026).
    """
    rng = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(owner.parameters(), MARK_RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    ruled = not torch.equal(marking.taught_N, train.classes_N)
    batches = endless(train.x_NCHW, rng)
    copies = [Simulated(fresh(number), 0) for number in range(STUDENTS if how.weight else 0)]
    owner.eval()  # batches of one class would spoil the statistics of batch normalisation
    for number in range(steps):
        index_B = torch.randint(len(train.x_NCHW), (BATCH,), generator=rng)
        x_BCHW = view.images(train.x_NCHW[index_B], rng)
        loss = functional.cross_entropy(view.scores(owner, x_BCHW), marking.taught_N[index_B])
        some = marking.batch(train, rng, view)
        weight = RULE_WEIGHT if ruled else 1.0
        loss = loss + weight * functional.cross_entropy(
            view.scores(owner, some.x_NCHW), some.classes_N
        )
        if copies:
            copy = copies[number % STUDENTS]
            weights = copy.stepped(owner, batches, how)
            index_B = torch.randint(len(marking.marks.x_NCHW), (BATCH // 2,), generator=rng)
            some = marking.marks.part(index_B)
            got_BK = functional_call(copy.net, weights, (some.x_NCHW,))
            loss = loss + how.weight * functional.cross_entropy(got_BK, some.classes_N)
        step(optimizer, loss)
        schedule.step()
        if copies:
            copy.learn(owner, batches)
            if copy.age > how.life:
                copies[number % STUDENTS] = Simulated(fresh(STUDENTS + number), 0)
    return owner.eval()

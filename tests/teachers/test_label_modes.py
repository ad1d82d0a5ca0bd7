"""What teachers reveal: label modes, the names of their classes, and two classes by one score."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refusal
from torch import Tensor, nn

import dfme
from dfme.config.settings import TeacherConfig
from dfme.data.drawn import OUTLINES
from dfme.errors import TeacherError
from dfme.nets.architectures import BUILDERS
from dfme.queries.programs import ProceduralImages
from dfme.spec import ImageSpec, LabelMode, Teacher, TeacherInfo
from dfme.teachers.build import make_teacher
from dfme.teachers.custom import wrap_callable
from dfme.teachers.label_modes import restrict
from dfme.teachers.options import TrainDataConfig, TrainTeacherConfig
from dfme.teachers.owner.training.train import train_teacher


class Fixed:
    """A teacher that always answers the same rows, whatever it is asked."""

    def __init__(self, scores: list[list[float]], mode: str = "logits") -> None:
        self.spec = ImageSpec((1, 2, 2))
        self.info = TeacherInfo()
        self.num_classes = len(scores[0])
        self.label_mode = LabelMode.parse(mode)
        self._scores = torch.tensor(scores)

    def __call__(self, images: Tensor, /) -> Tensor:
        return self._scores


def restricted(teacher: Teacher, mode: str) -> Teacher:
    return restrict(teacher, LabelMode.parse(mode))


def test_probabilities_are_the_softmax_rounded() -> None:
    teacher = Fixed([[0.0, np.log(2.0), np.log(4.0)]])
    torch.testing.assert_close(
        restricted(teacher, "probabilities")(torch.empty(1)), torch.tensor([[1 / 7, 2 / 7, 4 / 7]])
    )
    rounded = restricted(teacher, "probabilities:2")
    assert rounded(torch.empty(1))[0].tolist() == pytest.approx([0.14, 0.29, 0.57])
    assert str(rounded.label_mode) == "probabilities:2"


def test_top_k_hides_the_others_and_label_is_the_first_largest() -> None:
    teacher = Fixed([[0.1, 0.6, 0.26, 0.04], [0.3, 0.3, 0.2, 0.2]], "probabilities")
    answer = restricted(teacher, "top_k:2:1")(torch.empty(2))
    expected = torch.tensor([[torch.nan, 0.6, 0.3, torch.nan], [0.3, 0.3, torch.nan, torch.nan]])
    torch.testing.assert_close(answer, expected, equal_nan=True)
    labels = restricted(teacher, "label")(torch.empty(2))
    assert (labels.dtype, labels.tolist()) == (torch.int64, [1, 0])


def test_label_modes_can_be_stacked() -> None:
    teacher = Fixed([[0.0, 1.0, 2.0, 3.0], [3.0, -1.0, 0.0, 1.0]])
    three = restricted(restricted(teacher, "probabilities:4"), "top_k:3:3")
    one = restricted(three, "top_k:1:1")
    assert torch.isnan(one(torch.empty(2))).sum(1).tolist() == [3, 3]
    assert restricted(one, "label")(torch.empty(2)).tolist() == [3, 0]
    assert one.spec is teacher.spec


LADDER = [
    "logits",
    "probabilities",
    "probabilities:4",
    "probabilities:2",
    "top_k:2:2",
    "top_k:1:2",
    "label",
]


def test_restrict_only_ever_reveals_less() -> None:
    for i, given in enumerate(LADDER):
        for j, wanted in enumerate(LADDER):
            teacher = Fixed([[0.1, 0.5, 0.4]], given)
            if i == j:
                assert restricted(teacher, wanted) is teacher
            elif i < j:
                assert str(restricted(teacher, wanted).label_mode) == wanted
            else:
                refusal(f"{wanted}: the teacher gives only {given}", restricted, teacher, wanted)


def test_no_restriction_reveals_more_decimals_or_classes() -> None:
    rows = "probabilities:2 top_k:2, top_k:2 top_k:3, top_k:2:2 top_k:2, top_k:2 probabilities:1"
    for given, wanted in map(str.split, rows.split(", ")):
        refusal("gives only", restricted, Fixed([[0.1, 0.5, 0.4]], given), wanted)
    refusal("only 3 classes", restricted, Fixed([[0.1, 0.5, 0.4]]), "top_k:4")


def test_at_exact_ties_every_mode_names_the_first_class() -> None:
    """``torch.topk`` names class 2 of four equal ones; a softmax in float32 makes more of them
    equal.
    """
    for classes in (3, 4, 10, 100):
        rows = [
            [0.0] * classes,
            [-1.0] + [0.5] * (classes - 1),
            [0.1] * (classes - 1) + [0.1 + 1e-8],
        ]
        labels = restricted(Fixed(rows), "label")(torch.empty(3)).tolist()
        assert labels[:2] == [0, 1]
        for mode in ("top_k:1", "top_k:1:2"):
            revealed = ~restricted(Fixed(rows), mode)(torch.empty(3)).isnan()
            assert revealed.sum(1).tolist() == [1, 1, 1]
            assert revealed.int().argmax(1).tolist() == labels, mode
        two = ~restricted(Fixed(rows), "top_k:2")(torch.empty(3)).isnan()
        assert [row.nonzero().flatten().tolist() for row in two[:2]] == [[0, 1], [1, 2]]


CPU = torch.device("cpu")
CHECKPOINT = Path(__file__).resolve().parents[2] / "teachers" / "checkpoints" / "shapes.safetensors"
ADAPTER = """
url: http://127.0.0.1:9/classify
batch: 1
image: {encoding: png_base64}
request: {json: {image: "${image}"}}
answer: {path: scores, form: name, classes: [cat, dog, bird]}
teacher: {shape: [1, 8, 8]}
"""


def test_a_card_is_believed_behind_every_label_mode() -> None:
    for mode in (None, "label", "top_k:3"):
        assert make_teacher(
            TeacherConfig(label_mode=mode), {"checkpoint": str(CHECKPOINT)}, CPU
        ).info.class_names == tuple(OUTLINES)


def test_a_trained_teacher_remembers_the_folders(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for part in ("train", "test"):
        for number, name in enumerate(("wasp", "ant")):
            (tmp_path / "zoo" / part / name).mkdir(parents=True)
            image.new("L", (8, 8), 90 * number).save(tmp_path / "zoo" / part / name / "1.png")
    weights = tmp_path / "zoo.safetensors"
    train_teacher(
        TrainTeacherConfig(
            TrainDataConfig(name=str(tmp_path / "zoo")),
            "cnn_small",
            1,
            batch_size=2,
            threads=1,
            out=str(weights),
        )
    )
    names = make_teacher(TeacherConfig(), {"checkpoint": str(weights)}, CPU).info.class_names
    assert names == ("ant", "wasp")


def test_services_tell_by_their_options_and_adapters(tmp_path: Path) -> None:
    (tmp_path / "adapter.yaml").write_text(ADAPTER)
    by_adapter = make_teacher(
        TeacherConfig(kind="json"), {"adapter": str(tmp_path / "adapter.yaml")}, CPU
    )
    options = {"url": "http://127.0.0.1:9/models/x", "classes": ("cat", "dog", "bird")}
    by_option = make_teacher(TeacherConfig(kind="hf-api", shape=(1, 8, 8)), options, CPU)
    for teacher in (by_adapter, by_option):
        assert teacher.info.class_names == ("cat", "dog", "bird")
        teacher.info.close()


SHAPE = (1, 8, 8)


def logit(images: Tensor) -> Tensor:
    """The binary model: a logit z (B,) for class 1, of either sign."""
    return 8 * (images[:, 0, :4].mean(dim=(1, 2)) - images[:, 0, 4:].mean(dim=(1, 2)))


IMAGES = torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(0))
Z = logit(IMAGES).double()
P = 1 / (1 + (-Z).exp())
assert 0 < int((Z > 0).sum()) < len(Z), "both signs are there"
TRUTH = {
    "logits": torch.stack([torch.zeros_like(Z), Z], dim=1),
    "probabilities": torch.stack([1 - P, P], dim=1),
    "label": (Z > 0).long(),
}

# In what form a function may answer: a column, a plain vector, another library's, squeezed, other
# precision.
FORMS: dict[str, Callable[[Tensor], Any]] = {
    "column": lambda score_B: score_B[:, None],
    "vector": lambda score_B: score_B,
    "array": lambda score_B: score_B.numpy(),
    "list": lambda score_B: score_B.tolist(),
    "half": lambda score_B: score_B.half()[:, None],
    "squeezed": lambda score_B: score_B[:, None].squeeze(),
}


def function_of(of: str, form: str) -> Callable[[Tensor], Any]:
    """A function that answers a logit or a probability an image."""

    def answer(images: Tensor) -> Any:
        score_B = logit(images)
        return FORMS[form](score_B if of == "logits" else score_B.sigmoid())

    return answer


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("of", "mode"), [("logits", "logits"), ("probabilities", None), ("probabilities", "label")]
)
def test_a_function_with_one_score_an_image(of: str, mode: str | None, form: str) -> None:
    teacher = wrap_callable(function_of(of, form), shape=SHAPE, num_classes=2, label_mode=mode)
    expected, near = TRUTH[mode or of], 2e-3 if form == "half" else 1e-5
    torch.testing.assert_close(teacher(IMAGES).to(expected.dtype), expected, rtol=near, atol=near)
    for one, truth in zip(IMAGES.split(1), expected.split(1), strict=True):
        torch.testing.assert_close(teacher(one).to(truth.dtype), truth, rtol=near, atol=near)


@pytest.mark.parametrize(
    ("mode", "form"), [("label", "vector"), ("probabilities", "column"), ("top_k:1", "array")]
)
def test_a_function_that_says_its_scores_are_logits_is_cut_at_0(mode: str, form: str) -> None:
    answer: Any = function_of("logits", form)
    answer.label_mode = "logits"
    results = wrap_callable(answer, shape=SHAPE, num_classes=2, label_mode=mode)(IMAGES)
    if mode == "top_k:1":
        top_B = TRUTH["label"]
        assert torch.equal(results.isnan().int().argmin(dim=1), top_B)
        torch.testing.assert_close(
            results.nansum(dim=1).double(), TRUTH["probabilities"].max(dim=1).values
        )
    else:
        torch.testing.assert_close(results.to(TRUTH[mode].dtype), TRUTH[mode], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["label", None])
def test_logits_that_were_taken_for_probabilities_are_refused_not_cut_at_a_half(
    mode: str | None,
) -> None:
    """A label from .5 on a logit's scale would be wrong, and nothing in a label would show it."""
    teacher = wrap_callable(
        function_of("logits", "column"), shape=SHAPE, num_classes=2, label_mode=mode
    )
    refusal(r"if these are logits.*label_mode = 'logits'", teacher, IMAGES, error=TeacherError)


def test_another_number_of_classes_is_refused_with_what_to_do(tmp_path: Path) -> None:
    refusal(r"at least 2 .*, got 1", dfme.extract, logit, shape=SHAPE, num_classes=1, budget=10)
    refusal(
        r"got \(20, 1\); if it is a binary model.*num_classes=2",
        run,
        function_of("probabilities", "column"),
        tmp_path / "run",
        num_classes=10,
        error=TeacherError,
    )


def checkpoint(tmp_path: Path) -> tuple[Path, nn.Module]:
    torch.manual_seed(0)
    net = BUILDERS["cnn_small"](SHAPE[0], 1).eval()
    torch.save(net.state_dict(), tmp_path / "net.pt")
    return tmp_path / "net.pt", net


def loaded(kind: str, options: dict[str, Any], **common: Any) -> Teacher:
    return make_teacher(TeacherConfig(kind=kind, shape=SHAPE, **common), options, CPU)


@pytest.mark.parametrize("given", [{}, {"num_classes": 2}], ids=["found", "said"])
def test_a_checkpoint_whose_last_layer_has_one_output_is_recognised(
    tmp_path: Path, given: dict[str, int]
) -> None:
    path, net = checkpoint(tmp_path)
    teacher = loaded("torch", {"checkpoint": str(path)}, label_mode="logits", **given)
    with torch.no_grad():
        z_BK = torch.cat([torch.zeros(len(IMAGES), 1), net(IMAGES)], 1)
    assert teacher.num_classes == 2
    torch.testing.assert_close(teacher(IMAGES), z_BK, rtol=1e-5, atol=1e-5)


def test_weights_that_tell_no_architecture_but_fit_one_with_one_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a torchvision classifier: by its name and two classes, the file's one output is
    found.
    """
    path, _ = checkpoint(tmp_path)
    monkeypatch.setattr("dfme.teachers.local.pytorch.infer_net", lambda state: None)
    options = {"checkpoint": str(path), "arch": "cnn_small"}
    assert loaded("torch", options, num_classes=2, label_mode="logits")(IMAGES)[:, 0].tolist() == [
        0.0
    ] * len(IMAGES)
    refusal("of another shape", loaded, "torch", options, num_classes=3)


class Lone(nn.Module):
    """One logit an image, without an axis of its own."""

    def forward(self, images: Tensor) -> Tensor:
        return logit(images)


@pytest.mark.integration
def test_a_program_with_one_output_without_its_axis(tmp_path: Path) -> None:
    program = torch.export.export(
        Lone(), (IMAGES,), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    torch.export.save(program, tmp_path / "lone.pt2")
    teacher = loaded(
        "pt2", {"program": str(tmp_path / "lone.pt2"), "trust": True}, label_mode="logits"
    )
    torch.testing.assert_close(teacher(IMAGES).double(), TRUTH["logits"], rtol=1e-5, atol=1e-5)


def run(teacher: Callable[..., Any], out: Path, **settings: Any) -> dfme.Result:
    settings = {"num_classes": 2, "method": "procedural", "budget": 400, **settings}
    options = {"batch_size": 20, "student_steps": 1}
    student = {"lr": 0.05, "replay_steps": 4, "replay_batch": 32}
    return dfme.extract(
        teacher, shape=SHAPE, method_options=options, student=student, out=out, **settings
    )


def test_a_student_of_two_classes_follows_a_function_with_one_score(tmp_path: Path) -> None:
    result = run(function_of("probabilities", "squeezed"), tmp_path / "run", label_mode="label")
    leaves = ProceduralImages(ImageSpec(SHAPE), ("leaves",))
    with torch.no_grad():
        scores = result.student(images := leaves.draw(500, torch.Generator().manual_seed(3)))
    assert scores.shape == (500, 2)
    assert (scores.argmax(dim=1) == (logit(images) > 0)).double().mean() > 0.85

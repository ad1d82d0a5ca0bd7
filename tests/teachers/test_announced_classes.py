"""The names by which teachers call their classes, whatever they are and whatever is wrapped around
them.
"""

from pathlib import Path

import pytest
import torch

from dfme.config.settings import TeacherConfig
from dfme.data.drawn import OUTLINES
from dfme.teachers.build import make_teacher
from dfme.teachers.options import TrainDataConfig, TrainTeacherConfig
from dfme.teachers.owner.training.train import train_teacher

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

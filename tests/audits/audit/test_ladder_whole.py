"""A whole audit of a model of 128 pixels that is a public network with a last layer of its own."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from handmade import cells_here
from safetensors.torch import save_file

from dfme.audits.audit.result import audit_result
from dfme.cli.main import main

pytestmark = pytest.mark.integration

ARCH = "timm:test_convnext"  # of 64 features
CLASSES = 5
OWNER = (
    f"--teacher.checkpoint owner.safetensors --teacher.arch {ARCH} --teacher.shape 3,128,128 "
    f"--teacher.num-classes {CLASSES} --teacher.mean 0.5,0.5,0.5 "
    "--teacher.std 0.5,0.5,0.5 --evaluation.dataset images.npz"
)
AUDIT = (
    f"audit {OWNER} --student.weights public.safetensors --student.arch {ARCH} --student.train "
    "solve --label-modes probabilities --attackers public_pool,public_like --public-pool "
    "pictures.npz --budget 200 --defences none --twin none --transfer false --teacher.watch pairs "
    "--rate 60/min --jobs 1 --out a"
)


@pytest.fixture(autouse=True)
def _owner(here: Path) -> Iterator[None]:
    """The public weights, an owner of the same backbone, and two kinds of images."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = timm.create_model("test_convnext", pretrained=False, num_classes=CLASSES)
        save_file(net.state_dict(), "public.safetensors")
        torch.nn.init.normal_(net.head.fc.weight, std=0.3)
        save_file(net.state_dict(), "owner.safetensors")
    rng = np.random.default_rng(0)
    for name, count in {"images": 80, "pictures": 120}.items():
        pixels = rng.integers(0, 256, (count, 3, 16, 16), dtype=np.uint8)
        images = pixels.repeat(8, axis=2).repeat(8, axis=3)
        np.savez(f"{name}.npz", images=images, labels=np.arange(count) % CLASSES)
    with cells_here():
        yield


def test_the_last_layer_is_worked_out_from_any_images_and_said_to_be(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(AUDIT.split()) == 0
    out = capsys.readouterr().out
    result = audit_result(json.loads(Path("a/audit.json").read_text()))
    (pictures, like) = result.price
    weights = "weights that anybody can download (public.safetensors)"
    assert [(line.row, line.has, line.budget) for line in result.price] == [
        ("public_pool", f"{weights} and public pictures", 120),
        ("public_like", f"{weights} and images like yours", 40),
    ]
    # 64 features need more than 64 answers, which are more than a half of the images
    assert pictures.agreement == [1.0]
    assert like.mean < 1.0
    assert result.public_backbone.is_head
    assert "Your model is public.safetensors with a last layer of its own." in " ".join(out.split())
    assert pictures.hours_to_90 == pytest.approx(pictures.queries_to["0.9"][0] / 3_600, abs=1e-5)
    assert [line.alarms == [] for line in result.price] == [False] * 2
    assert (result.fidelity_test.rating, result.untried) == ("vulnerability detected", [])

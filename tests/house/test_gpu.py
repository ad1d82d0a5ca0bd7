"""On a CUDA device: nothing per step goes through the host, and what goes wrong is still noticed."""

import pytest
import torch
from toys import LinearTeacher, make_method, make_parts

import dfme
from dfme.errors import TeacherError
from dfme.methods import METHODS
from dfme.spec import ImageSpec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SPEC = ImageSpec((3, 16, 16))


@pytest.mark.parametrize("name", METHODS)
def test_a_step_never_makes_the_gpu_wait(name):
    teacher = LinearTeacher(SPEC, device="cuda")
    method = make_method(name, make_parts(teacher, 10**6, replay_steps=2, average=0.9, count=METHODS[name].students))
    for _ in range(2):
        method.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        method.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_an_unusable_answer_on_the_gpu_is_noticed_before_anything_is_kept():
    teacher = LinearTeacher(SPEC, device="cuda")
    parts = make_parts(teacher, 10**6)
    method = make_method("static", parts)
    teacher.weight.fill_(float("nan"))
    method.step()
    with pytest.raises(TeacherError, match="NaN"):
        parts.deferred.verify()


def test_a_run_on_the_gpu_is_finished_and_resumed(tmp_path):
    weight = torch.randn(64, 3, device="cuda")

    def teacher(images: torch.Tensor) -> torch.Tensor:
        return (images.cuda().flatten(1) @ weight).softmax(dim=1)

    options = {"shape": (1, 8, 8), "num_classes": 3, "out": tmp_path / "run", "device": "cuda"}
    first = dfme.extract(teacher, budget=20_000, **options)
    assert first.summary["spent"] == 20_000
    again = dfme.extract(teacher, budget=30_000, resume=True, **options)
    assert again.summary["spent"] == 30_000

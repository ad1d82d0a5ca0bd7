"""On a CUDA device: nothing per step goes through the host, and what goes wrong is still
noticed.
"""

import pytest
import torch
from toys import LinearTeacher, make_method, make_parts

import dfme
from dfme.config.sections import QueriesConfig
from dfme.errors import TeacherError
from dfme.methods import METHODS
from dfme.methods.base import Ask
from dfme.queries import sampler
from dfme.queries.programs import PROGRAMS
from dfme.spec import ImageSpec

pytestmark = pytest.mark.gpu
SPEC = ImageSpec((3, 16, 16))


@pytest.mark.parametrize(
    ("name", "queries"),
    [
        *[(name, {}) for name in METHODS],
        *[("procedural", {"programs": (program,)}) for program in PROGRAMS],
        ("static", {"evolve": 0.5}),
        ("static", {"pool": 2}),
    ],
)
def test_a_step_never_makes_the_gpu_wait(name, queries, monkeypatch):
    monkeypatch.setattr(sampler, "READY", 4)
    teacher, count = LinearTeacher(SPEC, device="cuda"), METHODS[name].students
    parts = make_parts(
        teacher, 10**6, queries=QueriesConfig(**queries), replay_steps=2, average=0.9, count=count
    )
    method = make_method(name, parts)
    for _ in range(2):
        method.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        method.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_gpu_is_asked_about_all_student_batches_at_once():
    method = make_method(
        "dfme", make_parts(LinearTeacher(SPEC, device="cuda"), 10**6), student_steps=5
    )
    assert method.asks() == [Ask("generator", 16), Ask("student", 40)]
    method.step()
    assert method.oracle.ledger.requests == 2


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
    assert dfme.extract(teacher, budget=20_000, **options).summary["spent"] == 20_000
    assert dfme.extract(teacher, budget=30_000, resume=True, **options).summary["spent"] == 30_000

"""What a captured step would read and write stays where it is: parameters, buffers."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toys import LinearTeacher, make_method, make_parts

from dfme.methods import METHODS
from dfme.spec import ImageSpec
from dfme.students.optimizers import ScheduledOptimizer

SPEC = ImageSpec((1, 8, 8))


def method_of(name: str, seed: int = 0, budget: int = 10_000, **student: Any) -> Any:
    student = {"count": METHODS[name].students, "average": 0.9, "replay_steps": 1, **student}
    return make_method(name, make_parts(LinearTeacher(SPEC), budget, seed, **student))


def addresses(method: Any) -> dict[str, int]:
    """Of every tensor that a step leaves behind for the next, by its name."""
    seen: dict[str, Tensor] = {}
    for own in {id(part): part for part in parts_of(method)}.values():
        if isinstance(own, nn.Module):
            tensors = itertools.chain(own.named_parameters(), own.named_buffers())
            seen |= {f"{type(own).__name__} {id(own)} {name}": value for name, value in tensors}
        else:
            for number, moments in own.state_dict()["state"].items():
                seen |= {
                    f"optimizer {id(own)} {number} {name}": value for name, value in moments.items()
                }
    return {name: value.data_ptr() for name, value in seen.items() if value.numel()}


def parts_of(method: Any) -> list[Any]:
    """Networks, averages and optimisers of a method and of its students."""
    own = [
        part
        for name in ("_discriminator", "_critic")
        if (part := getattr(method, name, None)) is not None
    ]
    held = [value for owner in (method, method.students, *own) for value in vars(owner).values()]
    parts = [value for value in held if isinstance(value, nn.Module | ScheduledOptimizer)]
    return [*parts, *method.students.nets]


@pytest.mark.parametrize("name", METHODS)
def test_a_step_leaves_everything_where_it_was(name: str) -> None:
    method = method_of(name)
    method.step()
    before = addresses(method)
    assert any(key.startswith("optimizer") for key in before)
    assert any("MovingAverage" in key for key in before)
    for _ in range(2):
        method.step()
    assert addresses(method) == before


def test_a_round_of_training_begins_in_the_same_networks() -> None:
    method = method_of("static", budget=64, steps=40, rounds=(0.5, 1.0))
    trainer = method.students

    def moved() -> dict[str, int]:
        return {
            name: at for name, at in addresses(method).items() if not name.startswith("optimizer")
        }

    before = moved()
    for _ in range(4):
        method.step()
        while trainer.steps_due:
            trainer.train_pending(5)
    assert trainer.steps == 40
    assert moved() == before


@pytest.mark.parametrize("name", METHODS)
def test_a_checkpoint_is_loaded_in_place(name: str) -> None:
    first, second = method_of(name), method_of(name, seed=1)
    for method in (first, second):
        method.step()
    before = {key: at for key, at in addresses(second).items() if not key.startswith("optimizer")}
    second.load_state_dict(first.state_dict())
    second.students.load_state_dict(first.students.state_dict())
    after = addresses(second)
    assert {key: after[key] for key in before} == before
    trained, loaded = (each.students.net.state_dict() for each in (first, second))
    assert all(torch.equal(value, loaded[key]) for key, value in trained.items())

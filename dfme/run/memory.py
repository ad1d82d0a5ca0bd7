"""The memory that a job needs, against what this machine has: said before anything is asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dfme.config.settings import Job
from dfme.errors import UserError
from dfme.methods import find_method
from dfme.methods.configs import GeneratorConfig
from dfme.nets.footprint import peak_bytes, weight_bytes
from dfme.run.components import Nets, build_replay
from dfme.run.evaluation import held_back_bytes
from dfme.run.scores import evaluation_batch
from dfme.spec import Teacher
from dfme.students.replay import Replay

PARTS = {
    "student": "--method.batch-size, --student.replay-batch, or another --student.arch",
    "generator": "--method.batch-size, --estimator.directions, or another --student.arch",
    "teacher": "--teacher.max-batch",
    "replay": "--student.replay-capacity or {room}say --student.replay-store disk",
    "evaluation": "--evaluation.limit, or take another --student.arch",
}
"""What memory goes to, and what to lower where it is too much."""

CGROUP = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
"""Of a container, the files with its limit and what is used of it, by versions 2 and 1."""

MIRRORED = ("cuda",)  # devices on which a replay on disk has a copy

SMALL = 1 << 20
"""Bytes of a batch of images that is too small for any network of ours to fill a memory with."""


def needed_memory(job: Job, teacher: Teacher, nets: Nets, call: int) -> dict[str, int]:
    """Bytes by ``PARTS``, at each part's worst moment, beside what the process holds before the run.

    ``call``: images in the largest batch that is asked about at once. What the kernels need, and what a teacher that
    is no network of ours needs, is not known.
    """
    shape, size = teacher.spec.shape, job.method_config.batch_size
    student, students, generator = nets.students[0], len(nets.students), nets.generator
    call = min(call, getattr(teacher, "max_batch", None) or call)
    scored = evaluation_batch(shape)

    def peak(net: Any, inputs: tuple[int, ...], training: bool = False) -> int:
        return peak_bytes(net, inputs, training) or 0

    states = 2 + bool(job.config.student.average)  # gradients are part of a step's peak
    learnt = max(size, job.config.student.replay_batch)
    needed = {"student": students * (states * weight_bytes(student) + peak(student, (learnt, *shape), True))}
    if generator is not None:
        latent = generator.draw(1, torch.Generator(next(generator.parameters()).device)).shape[1:]
        trained = isinstance(job.method_config, GeneratorConfig)
        needed["generator"] = 2 * weight_bytes(generator) + peak(generator, (size, *latent), trained)
        if "estimator" in find_method(job.method).sections:
            needed["generator"] += peak(student, (call, *shape)) + 4 * 4 * call * teacher.spec.numel
        elif trained:
            needed["generator"] += students * peak(student, (size, *shape), True)
    asked: int | None = getattr(teacher, "peak_bytes", lambda images: None)(max(call, scored))
    answer = job.config.answers.mode(teacher.label_mode).answer_bytes(teacher.num_classes)
    replay = build_replay(job, teacher.spec, answer, directory=Path())
    held_back = 2 * held_back_bytes(job, teacher.spec, answer, job.config.images)  # the old and the new
    return needed | {
        "teacher": asked or 0,
        "replay": 0 if replay is None else 2 * replay.full_size(answer),  # a checkpoint copies it
        "evaluation": peak(student, (scored, *shape)) + held_back,
    }


def at_once(needed: Mapping[str, int]) -> int:
    """Bytes that are needed together: what is kept for training, the replay, and the worst of the other parts."""
    others = max((size for part, size in needed.items() if part not in ("student", "replay")), default=0)
    return needed.get("replay", 0) + max(needed.get("student", 0), others)


def free_memory(device: torch.device) -> int:
    """Bytes that a run on this device can still have."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = [1 << 62]
    for line in Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").is_file() else ():
        if line.startswith("MemAvailable:"):
            free.append(int(line.split()[1]) * 1024)
    for limit, used in CGROUP:
        paths = [Path("/sys/fs/cgroup") / name for name in (limit, used)]
        if all(path.is_file() for path in paths) and (most := paths[0].read_text().strip()).isdecimal():
            free.append(int(most) - int(paths[1].read_text()))
    return max(0, min(free))


def require_memory(needed: Mapping[str, int], device: torch.device) -> None:
    """UserError, with the figures and what to lower, where this machine has not as much memory."""
    free = free_memory(device)
    if (total := at_once(needed)) > free:
        part = max(needed, key=lambda name: needed[name])
        room = max(0, free - total + needed.get("replay", 0)) // 2 * 0.95e-9  # a checkpoint copies it
        lower = PARTS[part].format(room=f"--student.replay-bytes to {room:.1f}GB, or " if room >= 0.1 else "")
        raise UserError(
            f"memory: this run needs about {total / 1e9:.1f} GB, {needed[part] / 1e9:.1f} GB of it for the {part}, and "
            f"{device.type} has {free / 1e9:.1f} GB free; lower {lower}; nothing was asked"
        )


def mirrored(replay: Replay, answer: int, needed: Mapping[str, int], device: torch.device) -> list[str]:
    """Let a replay on disk have a copy on a GPU to draw from; lines for people where there is no room for it."""
    if not replay.on_disk or device.type not in MIRRORED:
        return []
    size, free = replay.items_size(answer), free_memory(device) - at_once(needed)
    if size > free:
        return [f"replay: read from disk, {size / 1e9:.1f} GB do not fit into the {free / 1e9:.1f} GB left of {device}"]
    replay.mirror()
    return []

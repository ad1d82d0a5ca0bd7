"""What a teacher behind a described API is: from the flags, the description and the class names together."""

from __future__ import annotations

from dataclasses import dataclass

from dfme.config import TeacherConfig
from dfme.errors import UserError
from dfme.spec import ImageSpec, LabelMode
from teachers.remote.class_names import ClassNames
from teachers.remote.described.file import JsonApi
from teachers.remote.json_bodies import native_mode
from teachers.remote.pictures import COLOUR_TYPES


@dataclass(frozen=True)
class Facts:
    """A teacher's facts, from flags, file and class names together."""

    spec: ImageSpec
    classes: ClassNames
    mode: LabelMode


def settle_facts(api: JsonApi, config: TeacherConfig) -> Facts:
    """What the teacher is, the flags' word first. UserError for what is missing and for contradictions."""
    told, answer = api.description.teacher, api.description.answer
    shape = config.shape or told.shape
    if shape is None:
        raise UserError("--teacher.shape: neither flag nor adapter says the shape of an image; give it as C,H,W")
    if api.description.image.picture and shape[0] not in COLOUR_TYPES:
        raise UserError(f"--teacher.shape: expected 1 to 4 channels, as pictures have, got {shape[0]}")
    levels = told.levels if config.levels is None else config.levels
    if api.description.image.eight_bit:
        if levels not in (None, 256):
            raise UserError(f"--teacher.levels: got {levels}, but the adapter sends pixels as bytes: 256")
        levels = 256
    spec = ImageSpec(shape, config.bounds or told.bounds or (0.0, 1.0), levels)
    text = config.label_mode or told.label_mode
    wanted = LabelMode.parse(text) if text else None
    logits = answer.values == "logits" or (answer.values is None and wanted == LabelMode("logits"))
    mode = LabelMode("label") if answer.form in ("name", "number") else native_mode(wanted, logits)
    return Facts(spec, _classes(api, config), mode)


def _classes(api: JsonApi, config: TeacherConfig) -> ClassNames:
    number = config.num_classes or api.description.teacher.num_classes
    if api.classes is not None:
        if number not in (None, len(api.classes)):
            raise UserError(f"--teacher.num-classes: got {number}, but the adapter names {len(api.classes)} classes")
        return api.classes
    if number is None or number < 2:
        raise UserError("--teacher.num-classes: expected two or more, by flag or adapter; name the number of classes")
    return ClassNames(tuple(map(str, range(number))))

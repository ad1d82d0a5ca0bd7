"""The owner's side of the API: models, the form of their answers, how a teacher is made. No torch here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from dfme.config.settings import TeacherConfig
from teachers.options import HuggingFaceOptions, OnnxOptions, Pt2Options, TimmOptions, TorchOptions, TorchScriptOptions
from teachers.remote.options import HfApiOptions, JsonOptions, TfServingOptions, V2Options


class Source(NamedTuple):
    """The option that names a file, or a folder, which must be there, and what to do where it is not."""

    option: str
    remedy: str
    folder: bool = False


class Kind(NamedTuple):
    """A built-in kind of teacher: the model of its options and ``module:function`` of its loader.

    The loader is imported when a teacher is made, and called with the options, the ``TeacherConfig`` and the torch
    device. ``check``, if there is one, is called before anything heavy is loaded, with the
    ``TeacherConfig`` and the options as a mapping, and raises UserError. ``file`` is
    what it reads from this machine; kinds of service have none.
    """

    options: type[Any]
    loader: str
    check: str | None = None
    file: Source | None = None


PLAIN_SERVICE = "teachers.remote.checks:check_plain_service"

KINDS: dict[str, Kind] = {
    "torch": Kind(
        TorchOptions,
        "teachers.local.pytorch:load_torch",
        file=Source("checkpoint", "; give --teacher.checkpoint, or make one with run.py train-teacher"),
    ),
    "v2": Kind(V2Options, "teachers.open_inference.client:connect_v2", "teachers.remote.checks:check_service"),
    "tf-serving": Kind(TfServingOptions, "teachers.remote.tf_serving:connect_tf_serving", PLAIN_SERVICE),
    "hf-api": Kind(HfApiOptions, "teachers.remote.hf_api:connect_hf_api", PLAIN_SERVICE),
    "json": Kind(
        JsonOptions,
        "teachers.remote.json_api.api:connect_json",
        "teachers.remote.checks:check_json",
        Source("adapter", "; configs/adapters has examples"),
    ),
    "onnx": Kind(
        OnnxOptions,
        "teachers.local.onnx_runtime:load_onnx",
        file=Source("model", "; export one with torch.onnx.export"),
    ),
    "pt2": Kind(
        Pt2Options,
        "teachers.local.exported:load_pt2",
        "teachers.options:require_trust",
        Source("program", "; save one with torch.export.save"),
    ),
    "torchscript": Kind(
        TorchScriptOptions,
        "teachers.local.exported:load_torchscript",
        file=Source("program", "; TorchScript archives are written by torch.jit.save"),
    ),
    "hf": Kind(
        HuggingFaceOptions,
        "teachers.local.huggingface:load_huggingface",
        file=Source("folder", "; save one with the model's and the image processor's save_pretrained", folder=True),
    ),
    "timm": Kind(
        TimmOptions,
        "teachers.local.timm_folder:load_timm",
        file=Source("folder", "; save one with timm.models.save_for_hf", folder=True),
    ),
}


def check_teacher(config: TeacherConfig, options: Mapping[str, Any]) -> None:
    """What a built-in kind has to say of its options before anything heavy is loaded: nothing, or UserError."""
    check = KINDS[config.kind].check if config.kind in KINDS else None
    if check is not None:
        module, _, function = check.partition(":")
        getattr(importlib.import_module(module), function)(config, options)

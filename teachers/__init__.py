"""The owner's side of the API: models, the form of their answers, and the kinds of teacher.

A kind's module is imported when a teacher of that kind is made or checked. No torch here.
"""

from typing import Any, NamedTuple

from dfme.errors import flag
from dfme.teachers import options as of_kind

LOCAL = "dfme.teachers.local"


class Source(NamedTuple):
    """The option that names a kind's file or folder, and what to do where that does not exist."""

    option: str
    remedy: str
    folder: bool = False


class Kind(NamedTuple):
    """A built-in kind of teacher: its options, ``module:function`` of its loader, its files.

    The loader is called with the options, the ``TeacherConfig`` and the torch device. ``check`` is
    called before anything heavy is loaded, with the ``TeacherConfig`` and the options as a mapping;
    it raises UserError, and may give the line that a run says first.
    """

    options: type[Any]
    loader: str
    file: Source | None = None
    check: str | None = None

    @property
    def is_local(self) -> bool:
        """True if the model runs in this process."""
        return self.loader.startswith(LOCAL)


SERVICE = "dfme.teachers.remote.secrets:check_service"
TRUSTED = "dfme.teachers.options:require_trust"
JSON_FILE = "dfme.teachers.remote.json_api.adapter_file:check_json"
JSON_LOADER = "dfme.teachers.remote.json_api.api:connect_json"

ADAPTER = Source("adapter", "; configs/adapters has examples")

KINDS: dict[str, Kind] = {
    "torch": Kind(
        of_kind.TorchOptions,
        f"{LOCAL}.pytorch:load_torch",
        Source(
            "checkpoint",
            f"; give {flag('teacher.checkpoint')}, or make one with run.py train-teacher",
        ),
    ),
    "v2": Kind(of_kind.V2Options, "dfme.teachers.open_inference.client:connect_v2", check=SERVICE),
    "tf-serving": Kind(of_kind.TfServingOptions, JSON_LOADER, ADAPTER, JSON_FILE),
    "hf-api": Kind(of_kind.HfApiOptions, JSON_LOADER, ADAPTER, JSON_FILE),
    "json": Kind(of_kind.JsonOptions, JSON_LOADER, ADAPTER, JSON_FILE),
    "onnx": Kind(
        of_kind.OnnxOptions,
        f"{LOCAL}.onnx_runtime:load_onnx",
        Source("model", "; export one with torch.onnx.export"),
    ),
    "pt2": Kind(
        of_kind.Pt2Options,
        f"{LOCAL}.exported:load_pt2",
        Source("program", "; save one with torch.export.save"),
        TRUSTED,
    ),
    "torchscript": Kind(
        of_kind.TorchScriptOptions,
        f"{LOCAL}.exported:load_torchscript",
        Source("program", "; TorchScript archives are written by torch.jit.save"),
        TRUSTED,
    ),
    "hf": Kind(
        of_kind.HuggingFaceOptions,
        f"{LOCAL}.huggingface:load_huggingface",
        Source(
            "folder",
            "; save one with save_pretrained, of the model and the image processor",
            folder=True,
        ),
    ),
    "timm": Kind(
        of_kind.TimmOptions,
        f"{LOCAL}.folders:load_timm",
        Source("folder", "; save one with timm.models.save_for_hf", folder=True),
    ),
}

RECORDED_THERE = "a service's are recorded where it runs, by run.py serve {}; leave it out here"
"""Why the queries of a run on a service are not; how a server says it stands in braces."""

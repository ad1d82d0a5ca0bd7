"""The owner's side of the API: models, the form of their answers, and the kinds of teacher.

A kind's module is imported when a teacher of that kind is made or checked. No torch here.
"""

from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import Any, NamedTuple

from dfme.config.detectors import NEED_FEATURES
from dfme.config.settings import TeacherConfig
from dfme.data import check_dataset
from dfme.errors import UserError
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

WEIGHTS = Source("checkpoint", "; give --teacher.checkpoint, or make one with run.py train-teacher")
ADAPTER = Source("adapter", "; configs/adapters has examples")
ONNX = Source("model", "; export one with torch.onnx.export")
PROGRAM = Source("program", "; save one with torch.export.save")
ARCHIVE = Source("program", "; TorchScript archives are written by torch.jit.save")
HF_FOLDER = Source(
    "folder", "; save one with save_pretrained, of the model and the image processor", folder=True
)
TIMM_FOLDER = Source("folder", "; save one with timm.models.save_for_hf", folder=True)

KINDS: dict[str, Kind] = {
    "torch": Kind(of_kind.TorchOptions, f"{LOCAL}.pytorch:load_torch", WEIGHTS),
    "v2": Kind(of_kind.V2Options, "dfme.teachers.open_inference.client:connect_v2", check=SERVICE),
    "tf-serving": Kind(of_kind.TfServingOptions, JSON_LOADER, ADAPTER, JSON_FILE),
    "hf-api": Kind(of_kind.HfApiOptions, JSON_LOADER, ADAPTER, JSON_FILE),
    "json": Kind(of_kind.JsonOptions, JSON_LOADER, ADAPTER, JSON_FILE),
    "onnx": Kind(of_kind.OnnxOptions, f"{LOCAL}.onnx_runtime:load_onnx", ONNX),
    "pt2": Kind(of_kind.Pt2Options, f"{LOCAL}.exported:load_pt2", PROGRAM, TRUSTED),
    "torchscript": Kind(
        of_kind.TorchScriptOptions, f"{LOCAL}.exported:load_torchscript", ARCHIVE, TRUSTED
    ),
    "hf": Kind(of_kind.HuggingFaceOptions, f"{LOCAL}.huggingface:load_huggingface", HF_FOLDER),
    "timm": Kind(of_kind.TimmOptions, f"{LOCAL}.timm_folder:load_timm", TIMM_FOLDER),
}


def check_teacher(config: TeacherConfig, options: Mapping[str, Any]) -> str:
    """Check a teacher without torch: defences, watch, and the options of a built-in kind.

    Returns the line that a run prints first, empty if there is none. May raise UserError.
    """
    kind = KINDS.get(config.kind)
    local = kind is None or kind.is_local
    if config.defences:
        from dfme.teachers.defences import check_defences

        check_defences(config, local)
    if problems := [*_watch_problems(config, local)]:
        raise UserError("; ".join(problems))
    if kind is None or kind.check is None:
        return ""
    return resolve_name(kind.check)(config, options) or ""


def _watch_problems(teacher: TeacherConfig, local: bool) -> Iterator[str]:
    names = ",".join(teacher.watch)
    benign = teacher.benign
    needing = ", ".join(name for name in teacher.watch if name in NEED_FEATURES)
    if names and not local:
        yield (
            f"--teacher.watch: a service is watched where it runs, by run.py serve --watch {names}"
        )
        return
    if names and benign is None:
        yield (
            f"--teacher.benign: expected held-out labelled images to calibrate {names} "
            "on: a set or FOLDER"
        )
    if needing and teacher.kind != "torch":
        yield (
            f"--teacher.watch: {needing}: expected a teacher of kind torch to look into, "
            f"got {teacher.kind}"
        )
    if teacher.on_alarm == "label" and teacher.label_mode == "logits":
        yield "--teacher.on-alarm label: expected a --teacher.label-mode other than logits"
    try:
        if benign is not None:
            check_dataset(benign, download=False)
    except UserError as error:
        yield f"--teacher.benign: {error}"

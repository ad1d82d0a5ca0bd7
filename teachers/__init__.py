"""The owner's side of the API: models, the form of their answers, how a teacher is made. No torch
here.
"""

from collections.abc import Iterator, Mapping
from pkgutil import resolve_name
from typing import Any, NamedTuple

from dfme.config.detectors import NEED_FEATURES
from dfme.config.settings import TeacherConfig
from dfme.data import check_dataset
from dfme.errors import Message, Problem, Ref, UserError, flag, say
from dfme.teachers import options as local_options
from dfme.teachers.defences import check_defences
from dfme.teachers.remote.options import HfApiOptions, JsonOptions, TfServingOptions, V2Options

LOCAL = "dfme.teachers.local"


class Source(NamedTuple):
    """The option that names a file, or a folder, which must be there, and what to do where it is
    not.
    """

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

WEIGHTS = Source(
    "checkpoint", f"; give {flag('teacher.checkpoint')}, or make one with run.py train-teacher"
)
ADAPTER = Source("adapter", "; configs/adapters has examples")
ONNX = Source("model", "; export one with torch.onnx.export")
PROGRAM = Source("program", "; save one with torch.export.save")
ARCHIVE = Source("program", "; TorchScript archives are written by torch.jit.save")
HF_FOLDER = Source(
    "folder", "; save one with save_pretrained, of the model and the image processor", folder=True
)
TIMM_FOLDER = Source("folder", "; save one with timm.models.save_for_hf", folder=True)

KINDS: dict[str, Kind] = {
    "torch": Kind(local_options.TorchOptions, f"{LOCAL}.pytorch:load_torch", WEIGHTS),
    "v2": Kind(V2Options, "dfme.teachers.open_inference.client:connect_v2", check=SERVICE),
    "tf-serving": Kind(TfServingOptions, JSON_LOADER, ADAPTER, JSON_FILE),
    "hf-api": Kind(HfApiOptions, JSON_LOADER, ADAPTER, JSON_FILE),
    "json": Kind(JsonOptions, JSON_LOADER, ADAPTER, JSON_FILE),
    "onnx": Kind(local_options.OnnxOptions, f"{LOCAL}.onnx_runtime:load_onnx", ONNX),
    "pt2": Kind(local_options.Pt2Options, f"{LOCAL}.exported:load_pt2", PROGRAM, TRUSTED),
    "torchscript": Kind(
        local_options.TorchScriptOptions, f"{LOCAL}.exported:load_torchscript", ARCHIVE, TRUSTED
    ),
    "hf": Kind(
        local_options.HuggingFaceOptions, f"{LOCAL}.huggingface:load_huggingface", HF_FOLDER
    ),
    "timm": Kind(local_options.TimmOptions, f"{LOCAL}.timm_folder:load_timm", TIMM_FOLDER),
}


def check_teacher(config: TeacherConfig, options: Mapping[str, Any]) -> str:
    """Check a teacher without torch: defences, watch, and the options of a built-in kind.

    What a run is to say first, if anything. May raise UserError.
    """
    local = config.kind not in KINDS or KINDS[config.kind].is_local
    check_defences(config, local)
    if problems := [*_watch_problems(config, local)]:
        raise UserError(*problems)
    check = KINDS[config.kind].check if config.kind in KINDS else None
    if check is None:
        return ""
    said: str | None = resolve_name(check)(config, options)
    return said or ""


def _watch_problems(teacher: TeacherConfig, local: bool) -> Iterator[Problem | Message]:
    names = ",".join(teacher.watch)
    benign = teacher.benign
    needing = ", ".join(name for name in teacher.watch if name in NEED_FEATURES)
    if names and not local:
        served = Ref("watch", names)
        text = say("a service is watched where it runs, by run.py serve {}", served)
        yield Problem("teacher.watch", text)
        return
    if names and benign is None:
        text = say("expected held-out labelled images to calibrate {} on: a set or FOLDER", names)
        yield Problem("teacher.benign", text)
    if needing and teacher.kind != "torch":
        looked_into = f"{needing}: expected a teacher of kind torch to look into"
        yield Problem("teacher.watch", looked_into, got=teacher.kind)
    if teacher.on_alarm == "label" and teacher.label_mode == "logits":
        yield say("{teacher.on_alarm:label}: expected a {teacher.label_mode} other than logits")
    try:
        if benign is not None:
            check_dataset(benign, download=False)
    except UserError as error:
        yield Problem("teacher.benign", error.message)

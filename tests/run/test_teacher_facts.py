"""A run goes on with the teacher it began with: what is known of it, and the digests of its files, are on record."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import Hostile
from http_runs import command, extract, finished, summary
from protocols import tensor
from small_runs import BUDGET, SMALL, Metered, clone, ctrl_c
from tiers import exhaustive

from dfme.cli.extract import parse_extract
from dfme.cli.main import main
from dfme.compute import DeferredChecks
from dfme.errors import UserError
from dfme.run.build import build_oracle
from dfme.run.directory import RunDirectory
from dfme.run.job import PROJECT
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.facts import teacher_facts

pytestmark = pytest.mark.usefixtures("here")


class Known:
    """A teacher by what it says of itself."""

    spec = ImageSpec((1, 2, 2), (-1.0, 1.0), 256)
    num_classes = 3
    label_mode = LabelMode("top_k", k=2)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        raise AssertionError("nobody asks it")


def digests(kind: str, **options: Any) -> dict[str, str]:
    """The digests on record, by what they are of."""
    facts = teacher_facts(Known(), kind, options)
    assert json.loads(json.dumps(facts)) == facts, "plain data"
    files: dict[str, str] = facts["files"]
    return files


def made(*names: str) -> dict[str, str]:
    """Files, and their digests by other means."""
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(name.encode() * 100)
    return {name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in names}


def test_what_a_teacher_is_is_plain_data() -> None:
    spec = {"shape": [1, 2, 2], "bounds": [-1.0, 1.0], "levels": 256, "num_classes": 3, "label_mode": "top_k:2"}
    assert teacher_facts(Known(), "nowhere:T", {"url": "x", "n": 3}) == {
        "kind": "nowhere:T", **spec, "files": {}, "target": "nowhere:T",
    }  # fmt: skip
    options = {"url": "https://h.example:8/v2?key=s3cr3t", "model": "m", "authorised_by": "me"}
    facts = teacher_facts(Known(), "v2", options)
    assert facts == {
        "kind": "v2", **spec, "url": "https://h.example:8/v2", "model": "m", "files": {},
        "target": "https://h.example:8/v2, model m",
    }  # fmt: skip


def test_the_files_of_every_kind_are_digested() -> None:
    found = made("w.pt", "m.onnx", "p.ts", "ca.pem", "log.txt", "names.txt", "a b.npz", "digits")
    for kind, option, name in (("torch", "checkpoint", "w.pt"), ("torchscript", "program", "p.ts")):
        assert digests(kind, **{option: name}) == {option: found[name]}
    assert digests("v2", url="http://h", model="digits", ca_file="ca.pem") == {}
    assert digests("mine:T", weights="a b.npz", ca_file="ca.pem", log="log.txt", other="no.pt", n=3, folder=".") == {
        "weights": found["a b.npz"]
    }
    Path("names.txt").write_text("cat\ndog\n")
    assert (
        digests("hf-api", url="http://h", classes="names.txt")["classes"] == hashlib.sha256(b"cat\ndog\n").hexdigest()
    )
    assert digests("hf-api", url="http://h", classes=["cat", "dog"]) == {}


def test_folders_and_what_lies_beside_a_file() -> None:
    Path("hf").mkdir()
    Path("parts").mkdir()
    named = json.dumps({"id2label": {"0": "cat", "1": "dog"}})
    Path("hf/config.json").write_text(named)
    Path("parts/config.json").write_text("{}")
    whole = {"hf/config.json": hashlib.sha256(named.encode()).hexdigest()} | made(
        "hf/preprocessor_config.json", "hf/model.safetensors", "hf/README.md"
    )
    names = ("config.json", "preprocessor_config.json", "model.safetensors")
    assert digests("hf", folder="hf") == {name: whole[f"hf/{name}"] for name in names}
    parts = {"parts/config.json": hashlib.sha256(b"{}").hexdigest()} | made(
        "parts/a.safetensors", "parts/in/b.safetensors", "parts/c.safetensors"
    )
    index = json.dumps({"weight_map": {"x": "a.safetensors", "y": "in/b.safetensors", "z": "a.safetensors"}})
    Path("parts/model.safetensors.index.json").write_text(index)
    assert digests("hf", folder="parts") == {
        "config.json": parts["parts/config.json"], "a.safetensors": parts["parts/a.safetensors"],
        "in/b.safetensors": parts["parts/in/b.safetensors"],
        "model.safetensors.index.json": hashlib.sha256(index.encode()).hexdigest(),
    }  # fmt: skip
    weights = made("onnx/m.onnx.data", "onnx/other.bin")
    # As protocol buffers have TensorProto.external_data: a key and a value, each with its field, its length, its text.
    entry = b"j\x1a\n\x08location\x12\x0bm.onnx.dataj\x0b\n\x06offset\x12\x010"
    Path("onnx/m.onnx").write_bytes(b"\x08\x08" + entry * 2)
    assert digests("onnx", model="onnx/m.onnx") == {
        "model": hashlib.sha256(Path("onnx/m.onnx").read_bytes()).hexdigest(),
        "m.onnx.data": weights["onnx/m.onnx.data"],
    }
    made("api/labels.txt")
    Path("api/labels.txt").write_text("a\nb\n")
    answer = "{path: s, form: mapping, classes: labels.txt}"
    Path("api/a.yaml").write_text(f"url: http://h/x\nrequest: {{json: {{i: '${{image}}'}}}}\nanswer: {answer}\n")
    facts = teacher_facts(Known(), "json", {"adapter": "api/a.yaml", "url": ""})
    assert facts["url"] == "http://h/x"
    assert set(facts["files"]) == {"adapter", "labels.txt"}


def swap(weights: Path) -> tuple[str, str]:
    """Another teacher of the same form in the place of a file; the digests of both."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    before = hashlib.sha256(weights.read_bytes()).hexdigest()
    with safe_open(weights, "pt") as file:
        metadata, state = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    state = {key: value.flip(0).contiguous() if value.ndim == 2 else value for key, value in state.items()}
    weights.unlink()
    save_file(state, weights, metadata)
    return before, hashlib.sha256(weights.read_bytes()).hexdigest()


@pytest.mark.parametrize("ended", [True, *exhaustive(False)])
def test_another_checkpoint_in_the_old_ones_place_is_refused(ended: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Also after the end, with a larger budget; and the old one goes on."""
    weights = Path("t.safetensors")
    shutil.copy(PROJECT / "teachers/checkpoints/digits.safetensors", weights)
    assert main([*SMALL, "--teacher.checkpoint", "t.safetensors", "--out", "run"]) == 0
    if not ended:
        Path("run/summary.json").unlink()
    ledger = Path("run/ledger.jsonl").read_bytes()
    capsys.readouterr()
    for digest in swap(weights):
        assert main(["--resume", "--out", "run", "--budget", "200"]) == 2
        refused = capsys.readouterr().err
        assert digest[:12] in refused
        assert "checkpoint" in refused
    assert refused.count("\n") == 1
    assert Path("run/ledger.jsonl").read_bytes() == ledger
    shutil.copy(PROJECT / "teachers/checkpoints/digits.safetensors", weights)
    assert main(["--resume", "--out", "run", "--budget", "200"]) == 0
    told = json.loads(Path("run/summary.json").read_text())["teacher"]
    assert told["files"]["checkpoint"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert (told["kind"], told["num_classes"], told["label_mode"]) == ("torch", 10, "probabilities")


def test_a_function_of_other_form_is_refused_in_python(tmp_path: Path) -> None:
    """What the object says of itself is in no config.yaml."""
    out, first, second = tmp_path / "run", Metered({3: ctrl_c}), Metered()
    first.label_mode = "probabilities"  # type: ignore[attr-defined]
    second.label_mode = "logits"  # type: ignore[attr-defined]
    assert not clone(out, first).finished
    with pytest.raises(UserError, match=r"label_mode.*probabilities.*logits"):
        clone(out, second, resume=True)
    assert second.calls == 0
    assert clone(out, Metered(), resume=True).summary["spent"] == BUDGET


def test_a_network_on_a_gpu_has_no_journal_and_is_held_to_it_all_the_same(tmp_path: Path) -> None:
    class OnGpu(Known):
        device = torch.device("cuda")

    job = parse_extract(["--budget", "100"])
    facts = teacher_facts(OnGpu(), "torch", {"checkpoint": str(PROJECT / "teachers/checkpoints/digits.safetensors")})
    with RunDirectory.create(tmp_path / "run") as directory:
        oracle = build_oracle(job, OnGpu(), directory, {}, DeferredChecks(), facts)
        oracle.ledger.charge(10, "student")
        oracle.close()
        assert not directory.journal.exists()
        (digest,), zeros = facts["files"].values(), "0" * 64
        other = facts | {"files": {"checkpoint": zeros}}
        with pytest.raises(UserError, match=f"{digest[:12]}.*{zeros[:12]}"):
            build_oracle(job, OnGpu(), directory, {}, DeferredChecks(), other)


# A service

PARAMETERS = {"bounds": [0, 1], "label_mode": "probabilities", "levels": None}
CHANGES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "levels": ({"parameters": PARAMETERS | {"levels": 256}}, "levels", "None|null|none", "256"),
    "bounds": ({"parameters": PARAMETERS | {"bounds": [0, 2]}}, "bounds", r"\[0.0, 1.0\]", r"\[0.0, 2.0\]"),
    "label mode": ({"parameters": PARAMETERS | {"label_mode": "label"}}, "label_mode", "probabilities", "label"),
    "decimals": (
        {"parameters": PARAMETERS | {"label_mode": "probabilities:4"}}, "label_mode", "probabilities", "probabilities:4"
    ),
    "shape": ({"inputs": [tensor("x", "FP32", [-1, 1, 8, 9])]}, "shape", r"\[1, 8, 8\]", r"\[1, 8, 9\]"),
    "classes": ({"outputs": [tensor("y", "FP32", [-1, 7])]}, "num_classes", "10", "7"),
}  # fmt: skip


@pytest.fixture(scope="module", params=["ended", "cut short"])
def begun(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hostile, Path]]:
    """A run on a service, at its end or given up in its middle."""
    out = tmp_path_factory.mktemp("begun") / "run"
    with Hostile({} if request.param == "ended" else {5: "status:403"}) as server:
        server.what.parameters = PARAMETERS
        first = extract(server, out, budget=100)
        assert first.code == (0 if request.param == "ended" else 3), first.err
        yield server, out


@pytest.mark.integration
@pytest.mark.parametrize("change", CHANGES)
def test_what_a_service_announces_is_the_same_in_every_stretch(
    change: str, begun: tuple[Hostile, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, out = begun
    changes, name, before, after = CHANGES[change]
    asked, ledger = server.questions, (out / "ledger.jsonl").read_bytes()
    for key, value in changes.items():
        monkeypatch.setattr(server.what, key, value)
    refused = command(["--resume", "--out", str(out), "--budget", "200"])
    assert refused.code == 2
    assert re.search(rf"{name}.*({before}).*({after})", refused.line), refused.line
    assert server.questions == asked
    assert (out / "ledger.jsonl").read_bytes() == ledger


@pytest.mark.integration
def test_an_unchanged_service_goes_on_and_is_in_the_summary(begun: tuple[Hostile, Path], tmp_path: Path) -> None:
    server, out = begun
    shutil.copytree(out, tmp_path / "run")
    finished(command(["--resume", "--out", str(tmp_path / "run"), "--budget", "200"]))
    facts = summary(tmp_path / "run")["teacher"]
    assert facts == {
        "kind": "v2", "shape": [1, 8, 8], "bounds": [0.0, 1.0], "levels": None, "num_classes": 10,
        "label_mode": "probabilities", "url": server.url, "model": "m", "files": {},
        "target": f"{server.url}, model m",
    }  # fmt: skip

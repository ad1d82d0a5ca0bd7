"""The record says what was audited, and when."""

import hashlib
import json
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from command_line import parse_extract
from processes import summary
from small_runs import BUDGET, SMALL, Metered, clone, ctrl_c

from dfme.cli.main import main
from dfme.compute.modules import DeferredChecks
from dfme.errors import UserError
from dfme.nets import build_net
from dfme.run.build import build_oracle
from dfme.run.directory import RunDirectory
from dfme.run.job import PROJECT
from dfme.spec import ImageSpec, LabelMode, TeacherInfo
from dfme.teachers.facts import resolved_adapter, teacher_facts

pytestmark = pytest.mark.usefixtures("here")

DIGITS = PROJECT / "teachers/checkpoints/digits.safetensors"


def sha(path: str | Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def events(out: str | Path, name: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (Path(out) / "ledger.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == name]


# A teacher of files


def test_a_file_is_named_with_its_digest_its_classes_and_dates() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    assert main([*SMALL, "--teacher.checkpoint", str(DIGITS), "--out", "run"]) == 0
    facts = summary(Path("run"))
    assert facts["teacher"]["target"] == f"digits.safetensors, sha256 {sha(DIGITS)}"
    assert facts["teacher"]["class_names"] == list("0123456789")
    assert events("run", "budget")[0]["teacher"] == facts["teacher"]
    dates = [datetime.fromisoformat(facts[name]) for name in ("started", "ended")]
    assert before <= dates[0] <= dates[1] <= datetime.now(UTC)
    assert main(["--resume", "--out", "run", "--budget", "140"]) == 0
    again = summary(Path("run"))
    assert again["started"] == facts["started"]
    starts, ends = ([each[name] for each in again["stretches"]] for name in ("started", "ended"))
    assert starts == [each["started"] for each in events("run", "stretch")]
    assert ends == [each["at"] for each in events("run", "ended")]
    assert len(starts) == 2


def test_a_module_of_ones_own_is_named_and_may_be_mended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(".")
    source = (
        "class T:\n    shape, num_classes, class_names = (1, 8, 8), 2, ('dark', 'light')\n"
        "    def __call__(self, x):\n        p = x.mean((1, 2, 3))\n        return [[1 - q, q] for "
        "q in "
        "p.tolist()]\n"
    )
    path = Path("recorded_teacher.py")
    path.write_text(source)
    assert main([*SMALL, "--teacher", "recorded_teacher:T", "--out", "run"]) == 0
    facts, digest = summary(Path("run"))["teacher"], sha(path)
    assert facts["target"] == f"recorded_teacher:T in recorded_teacher.py, sha256 {digest}"
    assert facts["class_names"] == ["dark", "light"]
    path.write_text(source + "# mended\n")
    capsys.readouterr()
    assert main(["--resume", "--out", "run", "--budget", "140"]) == 0
    assert f"'recorded_teacher.py' (sha256 '{digest[:12]}') is now" in capsys.readouterr().err


def swap(weights: Path) -> tuple[str, str]:
    """Another teacher of the same form in the place of a file; the digests of both."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    before = sha(weights)
    with safe_open(weights, "pt") as file:
        metadata, state = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    weights.unlink()
    save_file({key: value.flip(0).contiguous() for key, value in state.items()}, weights, metadata)
    return before, sha(weights)


def test_a_checkpoint_that_lies_elsewhere_goes_on_if_it_is_the_same(
    monkeypatch: pytest.MonkeyPatch, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another is refused in one line, also in the middle and after the end with a larger budget."""
    shutil.copy(DIGITS, "t.safetensors")
    assert main([*SMALL, "--teacher.checkpoint", "t.safetensors", "--out", "runs/a"]) == 0
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    out = "../runs/a"
    assert main(["--resume", "--out", out, "--budget", "120"]) == 0  # found where the run was begun
    (here / "t.safetensors").rename("u.safetensors")
    assert (
        main(["--resume", "--out", out, "--budget", "140", "--teacher.checkpoint", "u.safetensors"])
        == 0
    )
    monkeypatch.chdir(here)
    assert main(["--resume", "--out", "runs/a", "--budget", "160"]) == 0
    digests, ledger = (
        swap(Path("elsewhere/u.safetensors")),
        Path("runs/a/ledger.jsonl").read_bytes(),
    )
    for _ in range(2):
        capsys.readouterr()
        assert main(["--resume", "--out", "runs/a", "--budget", "180"]) == 2
        refused = capsys.readouterr().err
        assert f"file checkpoint {digests[0][:12]} (now {digests[1][:12]})" in refused
        assert refused.count("\n") == 1
        assert Path("runs/a/ledger.jsonl").read_bytes() == ledger
        Path("runs/a/summary.json").unlink(missing_ok=True)
    shutil.copy(DIGITS, "elsewhere/u.safetensors")
    assert main(["--resume", "--out", "runs/a", "--budget", "180"]) == 0
    facts = summary(Path("runs/a"))["teacher"]
    assert facts["files"]["checkpoint"] == digests[0]
    assert (facts["kind"], facts["num_classes"], facts["label_mode"]) == (
        "torch",
        10,
        "probabilities",
    )


@pytest.mark.parametrize(
    ("name", "before", "now"),
    [
        ("label_mode", "probabilities", "logits"),
        ("bounds", (0.0, 1.0), (0.0, 2.0)),
        ("levels", 256, 16),
    ],
)
def test_a_function_of_other_form_is_refused_in_python(
    name: str, before: object, now: object, tmp_path: Path
) -> None:
    """What the object says of itself is in no config.yaml."""
    out, first, second = tmp_path / "run", Metered({3: ctrl_c}), Metered()
    setattr(first, name, before)
    setattr(second, name, now)
    assert not clone(out, first).finished
    with pytest.raises(
        UserError, match=rf"{name}.*{re.escape(str(now if name != 'bounds' else list(now)))}"
    ):
        clone(out, second, resume=True)
    assert second.calls == 0
    assert clone(out, first, resume=True).summary["spent"] == BUDGET


# Facts


class Known:
    """A teacher by what it says of itself."""

    spec = ImageSpec((1, 2, 2), (-1.0, 1.0), 256)
    num_classes = 3
    label_mode = LabelMode("top_k", k=2)
    info = TeacherInfo()

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        raise AssertionError("nobody asks it")


def digests(kind: str, **options: Any) -> dict[str, str]:
    """The digests on record, by what they are of."""
    facts = teacher_facts(Known(), kind, options)
    assert json.loads(json.dumps(facts)) == facts, "plain data"
    return facts["files"]


def write_files(*names: str) -> dict[str, str]:
    """Files, and their digests by other means."""
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(name.encode() * 100)
    return {name: sha(name) for name in names}


def test_what_a_teacher_is_is_plain_data() -> None:
    spec = {"shape": [1, 2, 2], "bounds": [-1.0, 1.0], "levels": 256, "num_classes": 3}
    spec |= {"label_mode": "top_k:2", "files": {}}
    assert teacher_facts(Known(), "nowhere:T", {"url": "x", "n": 3}) == {
        **spec, "kind": "nowhere:T", "target": "nowhere:T"
    }  # fmt: skip
    options = {"url": "https://h.example:8/v2?key=s3cr3t", "model": "m", "authorised_by": "me"}
    url = "https://h.example:8/v2"
    assert teacher_facts(Known(), "v2", options) == {
        **spec, "kind": "v2", "url": url, "model": "m", "target": f"{url}, model m"
    }  # fmt: skip


def test_the_files_of_every_kind_are_digested() -> None:
    paths = write_files("w.pt", "m.onnx", "p.ts", "ca.pem", "log.txt", "a b.npz", "digits")
    for kind, option, name in (("torch", "checkpoint", "w.pt"), ("torchscript", "program", "p.ts")):
        assert digests(kind, **{option: name}) == {option: paths[name]}
    assert digests("v2", url="http://h", model="digits", ca_file="ca.pem") == {}
    digested = {
        "weights": "a b.npz",
        "ca_file": "ca.pem",
        "log": "log.txt",
        "other": "no.pt",
        "n": 3,
        "folder": ".",
    }
    assert digests("mine:T", **digested) == {"weights": paths["a b.npz"]}


def test_folders_and_what_lies_beside_a_file() -> None:
    names = ("config.json", "preprocessor_config.json", "model.safetensors")
    whole = write_files(*(f"hf/{name}" for name in (*names, "README.md")))
    named = json.dumps({"id2label": {"0": "cat", "1": "dog"}})
    Path("hf/config.json").write_text(named)
    whole["hf/config.json"] = sha("hf/config.json")
    assert digests("hf", folder="hf") == {name: whole[f"hf/{name}"] for name in names}
    used = ("a.safetensors", "in/b.safetensors")
    parts = write_files(*(f"parts/{name}" for name in ("config.json", *used, "c.safetensors")))
    Path("parts/config.json").write_text("{}")
    index = json.dumps({"weight_map": {"x": used[0], "y": used[1], "z": used[0]}})
    Path("parts/model.safetensors.index.json").write_text(index)
    assert digests("hf", folder="parts") == {name: parts[f"parts/{name}"] for name in used} | {
        name: sha(f"parts/{name}") for name in ("config.json", "model.safetensors.index.json")
    }
    weights = write_files("onnx/m.onnx.data", "onnx/other.bin")["onnx/m.onnx.data"]
    # As protocol buffers have TensorProto.external_data: a key and a value, each with its field,
    # its length, its text.
    entry = b"j\x1a\n\x08location\x12\x0bm.onnx.dataj\x0b\n\x06offset\x12\x010"
    Path("onnx/m.onnx").write_bytes(b"\x08\x08" + entry * 2)
    assert digests("onnx", model="onnx/m.onnx") == {
        "model": sha("onnx/m.onnx"),
        "m.onnx.data": weights,
    }
    Path("labels.txt").write_text("a\nb\n")
    answer = "{path: s, form: mapping, classes: labels.txt}"
    paper = f"url: http://h/x\nrequest: {{json: {{i: '${{image}}'}}}}\nanswer: {answer}\n"
    Path("a.yaml").write_text(paper)
    facts = teacher_facts(Known(), "json", {"adapter": "a.yaml", "url": ""})
    assert (facts["url"], set(facts["files"])) == ("http://h/x", {"adapter", "labels.txt"})


def test_a_network_on_a_gpu_has_no_journal_and_is_held_to_it_all_the_same(tmp_path: Path) -> None:
    class OnGpu(Known):
        info = TeacherInfo("cuda")

    job = parse_extract(["--budget", "100"])
    facts = teacher_facts(OnGpu(), "torch", {"checkpoint": str(DIGITS)})
    with RunDirectory.create(tmp_path / "run") as directory:
        oracle = build_oracle(job, OnGpu(), directory, {}, DeferredChecks(), facts)
        oracle.ledger.charge(10, "student")
        oracle.close()
        assert not directory.journal.exists()
        other = facts | {"files": {"checkpoint": "0" * 64}}
        with pytest.raises(UserError, match=f"{sha(DIGITS)[:12]}.*{'0' * 12}"):
            build_oracle(job, OnGpu(), directory, {}, DeferredChecks(), other)


ADAPTER = """
url: https://host/v1?version=2&apikey=abc123
headers: {X-Api-Key: hunter2, X-Token: "${KEY}", Accept-Language: en}
request: {json: {i: "${image}", auth: {password: swordfish}}}
answer: {path: s, form: mapping, classes: labels.txt}
"""


def test_an_adapter_is_written_out_without_secrets() -> None:
    Path("labels.txt").write_text("cat\ndog\n")
    Path("a.yaml").write_text(ADAPTER)
    adapter = yaml.safe_load(resolved_adapter("json", {"adapter": "a.yaml", "url": ""}))
    assert adapter["url"] == "https://host/v1?version=2&apikey=***"
    assert adapter["headers"] == {"X-Api-Key": "***", "X-Token": "${KEY}", "Accept-Language": "en"}
    assert adapter["request"]["json"] == {"i": "${image}", "auth": {"password": "***"}}
    assert adapter["answer"]["classes"] == ["cat", "dog"]
    assert adapter["image"]["encoding"] == "png_base64"


def test_images_of_no_known_size_are_those_of_the_evaluation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch.save(build_net("cnn_small", (1, 8, 8), 10).state_dict(), "net.pt")
    words = [*SMALL, "--teacher.checkpoint", "net.pt"]
    assert main([*words, "--out", "a"]) == 2
    assert re.fullmatch(
        r"dfme: --teacher\.shape: .*give --teacher\.shape C,H,W\n", capsys.readouterr().err
    )
    assert not Path("a").exists()
    assert main([*words, "--out", "b", "--evaluation.dataset", "digits"]) == 0
    assert "images 1x8x8, as those of the evaluation (--teacher.shape)" in capsys.readouterr().err
    assert summary(Path("b"))["teacher"]["shape"] == [1, 8, 8]

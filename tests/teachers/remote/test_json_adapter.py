"""Descriptions of APIs: with faults, by docs/adapters.md, and for answers that are none."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from clients import SHAPE, K, answer_or_unusable, described
from damage import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from limits import KEY, Bucket, TopThree, digits
from service import Service

from dfme.answers.reading import UNKNOWN_CLASS, PartialAnswers
from dfme.cli.main import _shown
from dfme.config.messages import expected
from dfme.config.settings import TeacherConfig
from dfme.config.values import options_of
from dfme.data.class_names import read_names
from dfme.errors import Unusable
from dfme.oracle.ledger import Ledger, audit
from dfme.oracle.oracle import Oracle
from dfme.spec import ImageSpec, LabelMode
from dfme.teachers.build import make_teacher
from dfme.teachers.options import JsonOptions
from dfme.teachers.remote.json_api.adapter_file import ModelSpec, load_adapter
from dfme.teachers.remote.json_api.api import JsonAdapter, connect_json, png
from dfme.teachers.remote.json_api.description import AnswerForm, Description, ImageForm, JsonPath
from dfme.teachers.remote.json_bodies import ClassNames


def write(folder: Path, text: str) -> Path:
    (folder / "adapter.yaml").write_text(text)
    return folder / "adapter.yaml"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"anser": {}, "answer__pth": "x"}, "did you mean answer.path"),
        ({"image__encoding": "pgn"}, "image.encoding"),
        ({"batch": 0}, "batch: expected at least 1"),
        ({"batch": 4}, "batch: 4, expected"),
        ({"batch": 4, "request__json": ["${images}"]}, "answer.path: with batch: 4"),
        ({"request__bytes": "image/png"}, "request: expected one of"),
        ({"request__json": {"image": "no"}}, "once, got none"),
        ({"request__json": {"a": "${image}", "b": "${image}"}}, "once, got 2"),
        ({"request__json": {"a": "${image} ${images}"}}, "once, got 1"),
        ({"image__encoding": "list", "request__json": {"a": "x${image}"}}, "the whole of a text"),
        ({"image__encoding": "raw"}, "image.encoding: expected raw_base64"),
        ({"image__scale": [0, 255]}, "image.scale"),
        ({"answer__path": "__class__()"}, "answer.path: expected names with dots"),
        ({"answer__path": "a[*].b[*]"}, "[*] once"),
        ({"answer__form": "name"}, "answer.classes"),
        ({"answer__classes": "../labels.txt"}, "answer.classes"),
        *(
            ({"answer__scale": scale}, "answer.scale")
            for scale in (0, -1, float("nan"), float("inf"))
        ),
        ({"answer__scale": 100, "answer__form": "number"}, "answer.scale"),
        ({"headers": {"A:b": "c"}}, "headers: expected a name"),
        ({"headers": {"A": "${not a name}"}}, "name of an environment variable"),
        ({"headers": {"A": "${DFME_TEST_UNSET}"}}, "DFME_TEST_UNSET"),
        ({"answer__values": "logits", "teacher__label_mode": "top_k:2"}, "answer.values"),
        ({"teacher__label_mode": "best"}, "label mode: expected"),
        ({"teacher__levels": 16}, "--teacher.levels: got 16"),
        ({"teacher__shape": None}, "--teacher.shape: neither"),
        ({"teacher__num_classes": None}, "--teacher.num-classes"),
    ],
)
def test_a_description_with_faults_is_refused_before_anything_is_sent(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    options = JsonOptions(
        adapter=str(write(folder, yaml.safe_dump(described(**changes)))),
        url="http://127.0.0.1:9",
        allow_env=("DFME_TEST_UNSET",),
    )
    refused(words, connect_json, options, TeacherConfig(), torch.device("cpu"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("request: {json: &a [*a]}", "no alias"),
        ("request: {json: " + "[" * 700 + "]" * 700 + "}", "adapter.yaml: expected"),
        ("x: " + "y" * 200_001, "more than 200,000 bytes"),
        ("!!python/object/apply:os.getcwd []", "expected YAML"),
        ("request: {json: {class_path: os.getcwd}}", "once, got none"),
        ("a: 1\na: 2", "stands there twice"),
        ("- a", "got a list"),
        ("image: 3", "image"),
    ],
)
def test_yaml_is_only_data(text: str, words: str, tmp_path: Path) -> None:
    refused(words, load_adapter, write(tmp_path, text))


@pytest.mark.exhaustive
@given(
    st.text(alphabet='ab1.[]*"-_ (', max_size=12),
    st.recursive(
        st.integers(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab1"), inner),
        max_leaves=8,
    ),
)
@settings(max_examples=200, deadline=None)
def test_paths_find_something_or_say_what_is_missing(text: str, document: Any) -> None:
    try:
        path = JsonPath.read(text)
    except ValueError:
        return
    with contextlib.suppress(Unusable):
        assert path.each or len(path.values(document)) == 1


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from("abc")
)
rows = st.lists(scalars, min_size=K, max_size=K) | st.dictionaries(st.sampled_from("abcd"), scalars)


def adapter(mode: LabelMode, classes: Any, **answer: Any) -> JsonAdapter:
    model = ModelSpec(ImageSpec(SHAPE, levels=256), ClassNames(tuple(classes)), mode)
    return JsonAdapter(ImageForm(), lambda images: (b"", {}), AnswerForm(**answer), model)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["probabilities", "top_k:2", "label"])
@pytest.mark.parametrize("form", ["scores", "mapping", "pairs", "lists", "name", "number"])
@given(
    st.binary(max_size=100)
    | st.lists(
        scalars
        | st.lists(
            st.fixed_dictionaries({"label": scalars, "score": scalars}) | scalars, max_size=4
        )
        | rows,
        max_size=3,
    ).map(lambda value: json.dumps({"r": value}).encode())
)
@settings(max_examples=60, deadline=None)
def test_whatever_comes_is_an_answer_or_unusable(form: Any, mode: str, body: bytes) -> None:
    labels = form in ("name", "number") or mode == "label"
    answer = answer_or_unusable(
        adapter(
            LabelMode("label") if labels else LabelMode.parse(mode), "abc", path="r[*]", form=form
        ),
        body,
        2,
    )
    if isinstance(answer, PartialAnswers):
        assert len(answer.gaps) == 2
        assert len(answer.answers) == answer.gaps.count(0)
    elif answer is not None:
        assert answer.shape == ((2,) if labels else (2, K))
        assert answer.dtype == (torch.int64 if labels else torch.float32)


@pytest.mark.exhaustive
def test_a_long_and_deep_body_takes_no_time() -> None:
    reader = adapter(LabelMode("probabilities"), map(str, range(1000)), form="pairs")
    odd = json.dumps([{"label": f"9{'x' * 90}", "score": 1}] * 10_000).encode()
    start = time.perf_counter()
    for body in (b"[" * 1_000_000, b'{"a":' * 200_000, odd, b"9" * 1_000_000):
        answer = answer_or_unusable(reader, body, 1)
        assert answer is None or answer.gaps == (UNKNOWN_CLASS,)
    assert time.perf_counter() - start < 5


def test_class_names_come_from_a_list_a_text_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "labels.txt"
    file.write_text("\ufefftench, Tinca tinca\r\nshark\r\n\r\n", encoding="utf-8")
    assert read_names(str(file), "--teacher.classes") == ("tench, Tinca tinca", "shark")
    assert read_names("a, b,c", "--teacher.classes") == ("a", "b", "c")
    assert read_names(["a", "b"], "--teacher.classes") == ("a", "b")
    assert (
        len(read_names(",".join(f"class {number}" for number in range(1000)), "--teacher.classes"))
        == 1000
    )


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (7, 3), (32, 32)])
def test_pillow_reads_our_pngs(channels: int, height: int, width: int) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="the independent reader of pictures")
    image = np.random.default_rng(channels).integers(
        256, size=(height, width, channels), dtype=np.uint8
    )
    picture = pillow.open(io.BytesIO(png(image)))
    assert picture.mode == {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[channels]
    assert np.array_equal(np.asarray(picture).reshape(image.shape), image)
    pillow.open(io.BytesIO(png(image))).verify()


ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
TYPES = {"dict": "names and texts", "Any": "any"}
BLOCK = re.compile(r"<!-- tested: adapter(?:, file (\S+))? -->\n```\w+\n(.*?)```", re.S)


def test_the_table_has_every_key_with_its_type_default_and_meaning() -> None:
    rows = [
        f"| `{option.key}` | {TYPES.get(expected(option.type), expected(option.type))} "
        f"| {'empty' if option.default in ('', {}) else _shown(option.default)} | {option.help} |"
        for option in options_of(Description)
    ]
    assert all(option.help for option in options_of(Description))
    assert PAGE[PAGE.index("| Key |") :].strip().splitlines()[2:] == rows, (
        "put these rows there again:\n" + "\n".join(rows)
    )


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_the_example_as_printed(tmp_path: Path) -> None:
    """At fifty times the page's rate, which the service allows and the command keeps to."""
    shutil.copy(ROOT / "run.py", tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "VISION_KEY": KEY}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    top_three, printed = TopThree(digits, Bucket(250, 250)), ""
    with Service(top_three) as service:
        for file, text in BLOCK.findall(PAGE):
            text = text.replace("http://127.0.0.1:8000", service.url).replace(
                "per-second 5 ", "per-second 250 "
            )
            if file:
                (tmp_path / file).write_text(text)
                continue
            process = subprocess.run(
                ["bash", "-e", "-c", text],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=110,
            )
            assert process.returncode == 0, f"{text}\n{process.stdout}\n{process.stderr}"
            printed += process.stdout
    for line in re.findall(
        r"^    ((?:first.yaml|then look|images  |classes  |answers  ).*)$", PAGE, re.M
    ):
        assert line in printed
    totals = audit(tmp_path / "runs/audit/ledger.jsonl")
    summary = json.loads((tmp_path / "runs/audit/summary.json").read_text())
    assert (totals.spent, summary["spent"], totals.evaluation_queries) == (500, 500, 50)
    checked = int(re.search(r"queries +(\d+) images charged", printed)[1])  # type: ignore[index]
    assert len(top_three.served) == 500 + 50 + checked
    assert len(top_three.refused) == totals.refused == 0
    assert KEY not in printed + "".join(
        path.read_text() for path in (tmp_path / "runs/audit").glob("*.y*ml")
    )


@pytest.mark.integration
@pytest.mark.parametrize("hint", [True, False], ids=["Retry-After", "no hint"])
def test_refusals_of_a_service_teach_the_pace(
    hint: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over real connections, four in flight; 0.6.0 was refused more than once for each image.

    How fast it then goes is proved by an artificial clock, in tests/oracle/test_pace.py.
    """
    monkeypatch.setenv("KEY", KEY)
    (tmp_path / "digits.yaml").write_text(dict(BLOCK.findall(PAGE))["digits.yaml"])
    top_three, ledger = TopThree(lambda pixels: [0.1] * 10, Bucket(40, 40), hint), Ledger(120)
    with Service(top_three) as service:
        options = {"adapter": str(tmp_path / "digits.yaml"), "url": service.url}
        options["api_key_env"] = "KEY"
        teacher = make_teacher(TeacherConfig(kind="json"), options, torch.device("cpu"))
        Oracle(teacher, ledger)(torch.zeros(120, 1, 8, 8))
        teacher.close()  # type: ignore[attr-defined]
    assert ledger.refused == len(top_three.refused) < 20
    assert (ledger.spent, len(top_three.served)) == (120, 120)

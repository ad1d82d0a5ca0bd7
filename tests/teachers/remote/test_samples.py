"""From one sample answer to an adapter with which the client reads that answer's scores."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import refused

from dfme.cli.main import main
from dfme.config.settings import TeacherConfig
from dfme.errors import Unusable
from dfme.teachers.remote.endpoint import Reply
from dfme.teachers.remote.json_api.adapter_file import JsonApi, load_adapter, model_spec
from dfme.teachers.remote.json_api.api import JsonAdapter
from dfme.teachers.remote.json_api.sample import write_adapter

TAGS = [{"tag": {"en": "dog"}, "confidence": 0.83}, {"tag": {"en": "cat"}, "confidence": 0.11}]
IDS = [
    {"class_id": 7, "index": 0, "probability": 0.5},
    {"class_id": 3, "index": 1, "probability": 0.25},
]
ANIMALS = {"cat": 0.7, "dog": 0.2, "bird": 0.1}
SHARKS = {"tench": 0.6, "shark, white": 0.3}
THREE = [0.1, 0.2, 0.7]
YAML = {"${HOME}": 0.5, "x: [": 0.25}
ODD = {"ä b": 1.5, "c": -2.0}
SHARES = "probabilities"
SAMPLES: dict[str, tuple[Any, str, dict[str, float] | list[float] | str | int, str]] = {
    # name: the answer, the form, what stands in it by class, the label mode
    "png_base64": (
        {"status": "ok", "result": {"scores": ANIMALS}},
        "mapping",
        ANIMALS,
        "probabilities",
    ),
    "nested_list": (
        {"predictions": [{"logits": [2.1, -0.3, 0.5]}]},
        "scores",
        [2.1, -0.3, 0.5],
        "logits",
    ),
    "multipart": ({"results": TAGS}, "pairs", {"dog": 0.83, "cat": 0.11}, "top_k:2"),
    "hf_api": (
        [{"label": name, "score": SHARKS[name]} for name in SHARKS],
        "pairs",
        SHARKS,
        "top_k:2",
    ),
    "ids, boxes and times beside it": (
        {"took_ms": 12, "size": {"w": 32, "h": 32}, "out": IDS},
        *("pairs", {"7": 0.5, "3": 0.25}, "top_k:2"),
    ),
    "lists of lists": ([THREE], "scores", THREE, "probabilities"),
    "a label alone": ({"data": {"predicted class": "dog"}}, "name", "dog", "label"),
    "a number alone": ({"model": "m", "class": 2}, "number", 2, "label"),
    "percentages": (
        [{"label": "a", "score": 83.0}, {"label": "b", "score": 17.0}],
        "pairs",
        {"a": 0.83, "b": 0.17},
        "top_k:2",
    ),
    "percentages of all": (
        {"scores": [83, 10.5, 6.5]},
        "scores",
        [0.83, 0.105, 0.065],
        "probabilities",
    ),
    "large logits": ({"scores": [30.5, 20, 10]}, "scores", [30.5, 20, 10], "logits"),
    "tf_serving of two images": ({"predictions": [THREE] * 2}, "scores", THREE, "probabilities"),
    "two images by name": (
        [{"s": {"a": 75, "b": 25}}] * 2,
        "mapping",
        {"a": 0.75, "b": 0.25},
        SHARES,
    ),
    "labels of two images": ({"labels": ["dog", "dog"]}, "name", "dog", "label"),
    "names that mean something in yaml": (
        [{"label": name, "score": YAML[name]} for name in YAML],
        *("pairs", YAML, "top_k:2"),
    ),
    "labels beside confidences": (
        {"labels": ["dog", "cat", "bird"], "confidences": [0.7, 0.2, 0.05]},
        *("lists", {"dog": 0.7, "cat": 0.2, "bird": 0.05}, "top_k:3"),
    ),
    "labels beside scores of two images": (
        {"predictions": [{"classes": ["b", "a"], "scores": [0.6, 0.3]}] * 2},
        *("lists", {"b": 0.6, "a": 0.3}, "top_k:2"),
    ),
    "lists of lists side by side": (
        {"labels": [["dog", "cat"]], "scores": [[0.9, 0.1]]},
        *("lists", {"dog": 0.9, "cat": 0.1}, "top_k:2"),
    ),
    "objects beside scores": (
        {
            "result": {"labels": [{"id": 4, "name": "dog"}, {"id": 2, "name": "cat"}]},
            "scores": [0.9, 0.1],
        },
        *("lists", {"dog": 0.9, "cat": 0.1}, "top_k:2"),
    ),
    "numbers of classes beside scores": (
        {"class_ids": [7, 3], "scores": [0.5, 0.25], "took_ms": 3},
        *("lists", {"7": 0.5, "3": 0.25}, "top_k:2"),
    ),
    "rows of name and score": (
        [["dog", 0.7], ["cat", 0.2]],
        "pairs",
        {"dog": 0.7, "cat": 0.2},
        "top_k:2",
    ),
    "an object a name": ([{"dog": 0.7}, {"cat": 0.3}], "mapping", {"dog": 0.7, "cat": 0.3}, SHARES),
    "texts of per cent": (
        [{"label": "dog", "confidence": "70.5 %"}, {"label": "cat", "confidence": "2%"}],
        *("pairs", {"dog": 0.705, "cat": 0.02}, "top_k:2"),
    ),
    "a box beside a label": ({"box": [0.1, 0.2, 0.5, 0.6], "label": "dog"}, "name", "dog", "label"),
    "a model's name beside a label": (
        {"model_name": "net", "label": "dog"},
        "name",
        "dog",
        "label",
    ),
    "odd names": ({"my-model": {"2 out": ODD}}, "mapping", ODD, "logits"),
}


def reader_of(api: JsonApi, **flags: Any) -> JsonAdapter:
    description = api.description
    return JsonAdapter(
        description.image,
        lambda images: (b"", {}),
        description.answer,
        model_spec(api, TeacherConfig(**flags)),
    )


def body(answer: Any) -> Reply:
    return Reply(200, {}, json.dumps(answer).encode())


@pytest.mark.parametrize("name", SAMPLES)
def test_the_client_reads_the_samples_scores_with_the_adapter_that_was_written(
    name: str, tmp_path: Path
) -> None:
    answer, form, truth, mode = SAMPLES[name]
    (tmp_path / "answer.json").write_text(json.dumps(answer))
    said = write_adapter(str(tmp_path / "answer.json"), str(tmp_path / "my.yaml"))
    assert said.startswith(f"{tmp_path / 'my.yaml'}: answer.form {form}, ")
    api = load_adapter(tmp_path / "my.yaml")
    assert (api.description.answer.form, api.description.teacher.label_mode) == (form, mode)
    # What no answer tells, by flags, as its TODO says: the shape, and how many classes there are.
    number = 10 if form == "number" or name.startswith("ids") else None
    names = api.classes.names if api.classes else tuple(map(str, range(number or 3)))
    reader = reader_of(api, shape=(3, 8, 8), num_classes=number if api.classes is None else None)
    images = 2 if "two images" in name else 1
    assert api.description.batch == images
    read = reader.decode(body(answer), images)
    if mode == "label":
        assert names[int(read[0])] == truth if isinstance(truth, str) else int(read[0]) == truth
        return
    expected = dict(zip(names, truth, strict=True)) if isinstance(truth, list) else truth
    assert isinstance(expected, dict)
    got = {
        name: float(score)
        for name, score in zip(names, read[0], strict=True)
        if not torch.isnan(score)
    }
    assert got == pytest.approx(expected)


FALLING = [0.5, 0.4, 0.1]
BEST = {"label": "cat", "p": 0.7}
DOUBTS: dict[str, tuple[Any, str]] = {
    "labels beside the answers": (
        {"labels": ["b", "a", "c"], "outputs": [{"prob": FALLING}]},
        "the 3 scores at outputs[*].prob are sorted, and as many labels stand at 'labels'",
    ),
    "labels in one text": (
        {"label_names": "cat,dog,owl", "scores": FALLING},
        "as many labels stand at 'label_names'",
    ),
    "labels that are no names": (
        {"outputs": [{"tags": ["a\u001b[31m", "b"], "meta": {"prob": [0.6, 0.4]}}] * 2},
        "as many labels stand at 'outputs[*].tags'",
    ),
    "labels far away": (
        {"a": {"b": {"c": {"d": [{"title": name} for name in "xyz"]}}}, "out": [{"prob": FALLING}]},
        "as many labels stand at 'a.b.c.d'",
    ),
    "labels by number": (
        {"names": {"0": "cat", "1": "dog", "2": "owl"}, "scores": FALLING},
        "as many labels stand at 'names'",
    ),
    "numbers of classes far away": (
        {"meta": {"x": {"y": {"class_ids": [7, 3, 1]}}}, "out": [{"prob": FALLING[::-1]}]},
        "as many labels stand at 'meta.x.y.class_ids'",
    ),
    "the best beside the others": (
        {"best": BEST, "others": [{"label": "dog", "p": 0.2}]},
        "the scores at others lack the label at 'best.label'",
    ),
    "the best around the others": (
        {"label": "cat", "confidence": 0.7, "alternatives": [{"label": "dog", "confidence": 0.2}]},
        "the scores at alternatives lack the label at 'label'",
    ),
    "the best by other keys": (
        {"top_class": "cat", "top_score": 0.7, "scores": {"dog": 0.2, "owl": 0.1}},
        "the scores at scores lack the label at 'top_class'",
    ),
    "a score of its own for each": ({"predictions": [0.93, 0.12]}, "add up to 1.05"),
    "a score of its own for each name": ({"scores": {"cat": 0.9, "dog": 0.8}}, "add up to 1.7"),
}


@pytest.mark.parametrize(
    "answer",
    [
        {"top": BEST, "predictions": [BEST, {"label": "dog", "p": 0.2}]},
        {"classes": ["a", "b"], "outputs": [{"prob": FALLING}]},
        {"labels": ["b", "a", "c"], "outputs": [{"prob": [0.4, 0.5, 0.1]}]},
        {"message": "two words, done", "class_scores": [83, 17]},
        {"category": "animals", "threshold_score": 0.1, "out": [{"label": "dog", "score": 0.9}]},
    ],
)
def test_what_stands_beside_scores_is_no_doubt_by_itself(answer: Any, tmp_path: Path) -> None:
    (tmp_path / "answer.json").write_text(json.dumps(answer))
    write_adapter(str(tmp_path / "answer.json"), str(tmp_path / "my.yaml"))
    assert (tmp_path / "my.yaml").exists()


CHATS = {
    "chat completions": (
        {
            "choices": [{"message": {"role": "assistant", "content": "cat"}}],
            "usage": {"a": 1, "b": 2},
        },
        "choices[0].message.content",
    ),
    "messages": (
        {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "A cat."}]},
        "content[0].text",
    ),
    "a local model": ({"response": "cat", "done": True, "eval_count": 3}, "response"),
    "text generation": (
        [{"generated_text": '{"label": "cat", "score": 0.9}'}],
        "[0].generated_text",
    ),
    "contents and parts": (
        {
            "candidates": [
                {"content": {"parts": [{"text": "cat"}], "role": "model"}, "finishReason": "STOP"}
            ]
        },
        "candidates[0].content.parts[0].text",
    ),
}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        *DOUBTS.values(),
        *(
            (answer, f"the text of a language model, at {path}, which")
            for answer, path in CHATS.values()
        ),
        (b"<html>", "in JSON"),
        (b"[" * 100_000, "in JSON"),
        (b'{"a": ' * 20 + b'{"label": "x"}' + b"}" * 20, "scores or a label"),
        (b'{"message": "hello\\u001b[2J", "ok": true}', 'got {"message": str, "ok": bool}'),
        (b'{"a\\u001b[2J": {"b": [1]}}', r'got {"a\u001b[2J"'),
        (b'{"scores": [1e999, 2]}', "scores or a label"),
        (b'{"scores": {"a ": 0.5, "b\\n": 0.5}}', "scores or a label"),
        (b" " * 1_000_001, "at most 1,000,000 bytes"),
        (b'{"scores": [true, false]}', "scores or a label"),
        (b"null", "got null"),
        ({"usage": {"requests": 12, "seconds": 3}, "ok": True}, "scores or a label"),
        ({"image": {"width": 640, "height": 480}}, "scores or a label"),
        ({"bounding_box": [10, 20, 30, 40]}, "scores or a label"),
    ],
)
def test_a_sample_that_makes_no_adapter_is_refused_in_one_line(
    answer: Any, words: str, tmp_path: Path
) -> None:
    content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    (tmp_path / "answer.json").write_bytes(content)
    files = str(tmp_path / "answer.json"), str(tmp_path / "my.yaml")
    line = str(refused(words, write_adapter, *files))
    assert line.isprintable()
    assert len(line) < 600
    assert not (tmp_path / "my.yaml").exists()


def test_no_file_is_written_over_and_both_flags_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample, adapter = str(tmp_path / "answer.json"), tmp_path / "my.yaml"
    Path(sample).write_text(json.dumps(SAMPLES["multipart"][0]))
    command = ["check", "--sample", sample, "--write-adapter"]
    assert main([*command, str(adapter)]) == 0
    written = adapter.read_text()
    assert "TODO" in capsys.readouterr().out
    for words, key in (
        (["check", "--sample", sample], "--write-adapter: expected both"),
        ([*command, str(adapter)], "it is there already"),
        (
            ["check", "--sample", f"{sample}.no", "--write-adapter", f"{adapter}.no"],
            "--sample: cannot read",
        ),
        (["check", "--teacher", "json", "--teacher.adapter", str(adapter)], "--teacher.url"),
    ):
        assert main(words) == 2
        assert key in capsys.readouterr().err
    assert adapter.read_text() == written


@pytest.mark.parametrize(
    ("scale", "scores", "words"),
    [
        ("", {"cat": 83, "dog": 17}, "'cat' has 83 of 100"),
        ("scale: 100", {"cat": 0.17, "dog": 0.83}, "'dog' has 0.83"),
    ],
)
def test_a_wrong_scale_is_a_sentence_with_the_class(
    scale: str, scores: dict[str, float], words: str, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text(
        "url: http://h/x\nrequest: {json: {i: '${image}'}}\n"
        f"answer: {{form: mapping, classes: [cat, dog], {scale}}}\nteacher: {{shape: [3, 8, 8]}}\n"
    )
    refused(
        words, reader_of(load_adapter(tmp_path / "a.yaml")).decode, body(scores), 1, error=Unusable
    )

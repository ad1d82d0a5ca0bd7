"""``dfme.Guard`` told where images and scores are: rows of JSON by docs/watch.md, and wrongly."""

import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from processes import PROJECT
from test_guard import FORM, SECRETS, SHAPE, X, answering, ask, guard, leaks, model, read

import dfme
from dfme.config.settings import TeacherConfig
from dfme.teachers.remote.endpoint import Reply
from dfme.teachers.remote.json_api.adapter_file import load_adapter, model_spec
from dfme.teachers.remote.json_api.api import JsonAdapter, body_of
from dfme.teachers.remote.secrets import Secrets


async def rows(scope: Any, receive: Any, send: Any) -> None:
    x_BHWC = torch.tensor(json.loads(await read(receive))["instances"])
    content = {"predictions": model(x_BHWC.permute(0, 3, 1, 2)).tolist(), "best": SECRETS}
    await answering(json.dumps(content).encode())(scope, receive, send)


def test_the_lines_of_the_docs_read_and_replace_what_the_adapter_writes_and_reads() -> None:
    page = (PROJECT / "docs/watch.md").read_text()
    (lines,) = re.findall(r"^      images=lambda body: .*\n(?:      \w+=.*\n){2}", page, re.MULTILINE)
    form = eval(f"dict({lines})", {"json": json, "np": np})
    api = load_adapter("configs/adapters/tf_serving.yaml")
    spec = model_spec(api, TeacherConfig(shape=SHAPE, num_classes=5))
    adapter = JsonAdapter(api.description.image, body_of(api, Secrets({})), api.description.answer, spec)
    told = ask(
        guard(rows, paths=["/v1/{name}:predict"], **form), path="/v1/m:predict", body=adapter.encode(X).body
    )
    answers = adapter.decode(Reply(*told), len(X))
    assert ((answers * 4 % 1 == 0).all(), leaks(told)) == (True, False)
    assert answers.argmax(1).equal(model(X).argmax(1))


@pytest.mark.parametrize("form", [{"form": "v3"}, {"form": "v2", **FORM}, {"images": FORM["images"]}])
def test_a_form_that_cannot_be_is_refused_before_it_serves(form: dict[str, Any]) -> None:
    with pytest.raises(dfme.UserError, match=r"either form, .* or all of images, scores, replace; got form="):
        dfme.Guard(rows, teacher=model, shape=SHAPE, num_classes=5, **form)

"""``dfme.Guard`` before apps that fail: nothing undefended goes out."""

import gzip
import json
from typing import Any

import brotli
import pytest
from guarded_apps import (
    SECRETS,
    TRUTH,
    X,
    answering,
    ask,
    guard,
    lax,
    leaks,
    model,
)
from torch import Tensor


async def half(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": TRUTH, "more_body": True})
    if scope["path"].endswith("raise"):
        raise RuntimeError(TRUTH)


async def by_file(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.pathsend", "path": __file__})


def failing(*arguments: Any) -> Any:
    raise RuntimeError(SECRETS[0])


TOO_FEW = json.dumps({"scores": model(X[:2]).tolist()}).encode()
FAILURES: dict[str, tuple[Any, dict[str, Any]]] = {
    "scores that are not found": (answering(TRUTH.replace(b"scores", b"logits")), {}),
    "scores in an error": (answering(status=404), {}),
    "scores in a redirect": (answering(status=307, Location="/elsewhere"), {}),
    "a packing that nobody asked for": (
        answering(brotli.compress(TRUTH), Content_Encoding="br"),
        {},
    ),
    "an error in a packing": (answering(gzip.compress(TRUTH), 400, Content_Encoding="gzip"), {}),
    "a part": (answering(TRUTH[20:], 206, Content_Range="bytes 20-/999"), {}),
    "scores of fewer images": (answering(TOO_FEW), {}),
    "scores that are none": (answering(TRUTH.replace(b"0.", b"7.")), {}),
    "scores that cannot be read": (answering(), {"scores": failing}),
    "scores that cannot be replaced": (answering(), {"replace": failing}),
    "images that cannot be read": (answering(), {"images": failing}),
    "a defence that fails": (answering(), {"defences": f"{__name__}:Broken"}),
    "half an answer": (half, {}),
    "half an answer and a crash": (half, {"paths": ["/predict/raise"]}),
    "a file": (by_file, {}),
}


class Broken:
    """A defence that works once, when it is tried."""

    tried = 0

    def answer(self, p_BK: Tensor, images_BCHW: Tensor) -> Tensor:
        Broken.tried += 1
        return p_BK if Broken.tried < 2 else failing()


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_a_500_that_tells_nothing_unless_its_owner_wants_the_answer(name: str) -> None:
    app, options = FAILURES[name]
    Broken.tried = 0
    path = options.get("paths", ["/predict"])[0]
    closed = guard(app, **options)
    answer = ask(closed, path=path)
    assert (answer[0], leaks(answer)) == (500, False)
    assert json.loads(answer[2]) == {
        "error": "the model failed on this request; it has been counted"
    }
    assert (closed.meter.failed, closed.meter.answered) == (1, 0)
    Broken.tried = 0
    complete = "half" not in name and name != "a file"
    assert ask(guard(app, fail_open=True, **options), path=path)[2] == (
        ask(app)[2] if complete else answer[2]
    )


def test_a_quota_is_refused_before_the_app_is_asked_even_where_failures_are_open() -> None:
    calls = list[int]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        calls.append(1)
        await lax(scope, receive, send)

    closed = guard(app, defences="quota:images=5", fail_open=True)
    assert [ask(closed)[0] for _ in range(3)] == [200, 403, 403]
    assert (len(calls), closed.meter.images, closed.meter.refused) == (1, 3, {"quota": 2})

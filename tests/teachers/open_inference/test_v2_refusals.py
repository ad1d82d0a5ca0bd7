"""What a v2 server refuses: batches that are too large, and binary tensors."""

import numpy as np
import pytest
from clients import GREY, v2_teacher
from protocols import V2, Asked, answer, scores
from refusals import refused
from service import http

from dfme.errors import BatchTooLarge, Refused
from dfme.teachers.open_inference.client import batch_limit


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (b"[request id: 7] inference request batch-size must be <= 8 for 'm'", 8),
        (b'{"error":"batch of 65 images: expected at most 64 images"}', 64),
        (b"Batch size 12 exceeds maximum batch size of 4", 4),
        (b"batch 12 > max_batch_size: 4", 4),
        (b"unexpected shape for input 'x' for model 'm'. Expected [1,3,4,4], got [8,3,4,4]", 1),
        (b"unexpected shape for input 'x' for model 'm'. Expected [1,3,4,4], got [8,3,5,5]", False),
        (b"unexpected shape for input 'x' for model 'm'. Expected [-1,3,4,4], got [8,3,5,5]", False),
        (b"Got invalid dimensions for input: x for the following indices index: 0 Got: 8 Expected: 1", 1),
        (b"the batch is too large", None),
        (b"Batch of 9 exceeds what this model takes", None),
        (b"inference request batch-size must be >= 1", False),
        (b"expected pixels within 0 and 1, got 0 to 7", False),
        (b"", False),
        (b"\xff" * 100, False),
    ],
)
def test_a_limit_is_found_in_the_words_of_a_refusal(text: bytes, limit: int | bool | None) -> None:
    found = batch_limit(text)
    assert found == limit
    assert type(found) is type(limit)


@pytest.mark.integration
def test_a_batch_that_is_refused_for_its_size_says_the_limit() -> None:
    script = V2(infer=lambda asked: http({"error": "inference request batch-size must be <= 1 for 'm'"}, 400))
    with v2_teacher(script) as made:
        caught = refused("must be <= 1", made, GREY, error=BatchTooLarge)
        assert caught.limit == 1
        script.infer = lambda asked: answer(asked, scores(asked.pixels))
        made(GREY)
    assert [asked.binary for asked in script.asked] == [True, True]


def refusing_binary(status: int) -> V2:
    """A server that announces binary tensors and cannot read them."""

    def infer(asked: Asked) -> bytes:
        return (
            http({"error": "cannot parse"}, status) if asked.binary else answer(asked, scores(asked.pixels))
        )

    return V2(infer=infer)


@pytest.mark.integration
@pytest.mark.parametrize("status", [400, 415, 422])
def test_a_server_that_cannot_read_binary_is_asked_in_json(status: int) -> None:
    script = refusing_binary(status)
    with v2_teacher(script) as made:
        caught = refused("from here on in JSON", made.ask, GREY, "k", error=Refused)
        assert (caught.retry, caught.reason) == (True, str(status))
        assert np.array_equal(made.ask(GREY, "k").numpy(), scores(GREY.numpy()))
        script.infer = lambda asked: http({"error": "no"}, status)
        assert not refused("no", made, GREY, error=Refused).retry
    assert [asked.binary for asked in script.asked] == [True, False, False]


@pytest.mark.integration
@pytest.mark.parametrize(("encoding", "status"), [("binary", 400), ("auto", 403)])
def test_no_other_refusal_changes_the_encoding(encoding: str, status: int) -> None:
    script = refusing_binary(status)
    with v2_teacher(script, encoding=encoding) as made:
        for _ in range(2):
            assert not refused("", made, GREY, error=Refused).retry
    assert [asked.binary for asked in script.asked] == [True, True]


@pytest.mark.integration
def test_an_encoding_that_has_worked_is_kept() -> None:
    script = V2()
    with v2_teacher(script) as made:
        made(GREY)
        script.infer = lambda asked: http({"error": "pixels out of range"}, 400)
        assert not refused("pixels out of range", made, GREY, error=Refused).retry
    assert [asked.binary for asked in script.asked] == [True, True]


@pytest.mark.integration
@pytest.mark.parametrize("extensions", [[], ["model_repository"], None])
def test_a_server_that_announces_nothing_is_asked_in_json(extensions: list[str] | None) -> None:
    script = V2(extensions=extensions)  # type: ignore[arg-type]
    with v2_teacher(script) as made:
        made(GREY)
    assert [asked.binary for asked in script.asked] == [False]

"""Answers of the hostile server that cannot be one: well-formed HTTP, and wrong in what it carries."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hostile_v2 import Query, packed, truth

Answer = tuple[bytes, dict[str, str]]
"""A body and its headers."""


def some_nan(query: Query) -> Answer:
    scores = truth(query.images)
    scores[-1, 3] = np.nan
    return packed(scores, query.binary)


def one_image_less(query: Query) -> Answer:
    return packed(truth(query.images)[1:], query.binary)


def one_class_more(query: Query) -> Answer:
    return packed(np.pad(truth(query.images), ((0, 0), (0, 1))), query.binary)


def cut_short(query: Query) -> Answer:
    """As ``truncated``, but the Content-Length is that of what was sent."""
    body, headers = query.answer
    return body[:-7], headers


def negative(query: Query) -> Answer:
    return packed(-truth(query.images), query.binary)


def other_name(query: Query) -> Answer:
    return packed(truth(query.images), query.binary, name="embedding")


def other_type(query: Query) -> Answer:
    return packed(truth(query.images), query.binary, datatype="BYTES")


def short_header(query: Query) -> Answer:
    """The JSON part is said to be longer than everything."""
    body, headers = packed(truth(query.images), True)
    return body, headers | {"Inference-Header-Content-Length": str(len(body) + 1)}


def swapped(query: Query) -> Answer:
    """Binary said to be JSON for who wants binary, and JSON said to be binary for who wants JSON."""
    body, _ = packed(truth(query.images), query.binary)
    if query.binary:
        return body, {"Content-Type": "application/json"}
    return body, {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "12"}


def garbage_bytes(query: Query) -> Answer:
    noise = np.random.default_rng(len(query.images)).bytes(700)
    return noise, {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "90"}


def json_body(body: bytes) -> Callable[[Query], Answer]:
    return lambda query: (body, {"Content-Type": "application/json"})


ANSWERS: dict[str, Callable[[Query], Answer]] = {
    "nan": some_nan,
    "one_image_less": one_image_less,
    "one_class_more": one_class_more,
    "cut_short": cut_short,
    "negative": negative,
    "other_name": other_name,
    "other_type": other_type,
    "short_header": short_header,
    "swapped": swapped,
    "garbage_bytes": garbage_bytes,
    "garbage_json": json_body(b'{"outputs": [{"name": "scores", "data": [0.1, 0.'),
    "deep_json": json_body(b"[" * 100_000),
    "no_outputs": json_body(b'{"outputs": []}'),
    "null": json_body(b"null"),
    "empty": json_body(b""),
}

"""A teacher behind a service: one call, one request; a refusal for size is told from any other."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Literal

import numpy as np
import pytest
import torch
from clients import endpoint
from refusals import refused
from service import Service, http
from torch import Tensor

from dfme.errors import BatchTooLarge, Refused
from dfme.spec import ImageSpec, LabelMode, RequestPolicy, Teacher
from dfme.teachers.remote.endpoint import Reply
from dfme.teachers.remote.options import ServiceOptions
from dfme.teachers.remote.teacher import Query, RemoteTeacher, request_policy_of

pytestmark = pytest.mark.integration

SPEC = ImageSpec((1, 2, 2))


class Sums:
    """Asks for the sum of each image and gets raw float32; a refusal names its limit after ``at most``."""

    def encode(self, images_BCHW: Tensor) -> Query:
        return Query("/sum", images_BCHW.numpy().tobytes(), {"X-Images": str(len(images_BCHW))})

    def decode(self, reply: Reply, batch: int) -> Tensor:
        return torch.from_numpy(np.frombuffer(reply.body, np.float32).copy()).view(batch, 2)

    def most_bytes(self, batch: int) -> int:
        return 8 * batch

    def batch_limit(self, said: bytes) -> int | Literal[False] | None:
        word, _, count = said.decode().rpartition(" ")
        return {"at most": int(count) if count.isdigit() else 0, "too": None}.get(word, False)


def sums(request):
    images = np.frombuffer(request.body, np.float32).reshape(int(request.headers["x-images"]), 4)
    return http(np.stack([images.sum(1), -images.sum(1)], 1).astype(np.float32).tobytes())


@contextmanager
def teacher(server: Service) -> Iterator[RemoteTeacher]:
    with endpoint(server.url) as service:
        yield RemoteTeacher(service, Sums(), SPEC, 2, LabelMode("logits"), 64, RequestPolicy())


def test_it_is_a_teacher_that_asks_the_service():
    x_BCHW = torch.arange(12.0).view(3, 1, 2, 2)
    with Service(sums) as server, teacher(server) as remote:
        assert isinstance(remote, Teacher)
        assert remote(x_BCHW).tolist() == [[6, -6], [22, -22], [38, -38]]
        assert remote.ask(x_BCHW[:1], "key-1").tolist() == [[6, -6]]
        remote(x_BCHW[:1])
        remote.close()
        remote.close()
    keys = [request.headers["idempotency-key"] for request in server.requests]
    assert keys[1] == "key-1"
    assert len(set(keys)) == 3
    assert remote.info.max_batch == 64


def test_answers_from_many_threads_belong_to_their_questions():
    with Service(sums) as server, teacher(server) as remote, ThreadPoolExecutor(4) as threads:
        questions = [torch.full((2, 1, 2, 2), float(i)) for i in range(40)]
        answers = list(threads.map(lambda i: remote.ask(questions[i], str(i)), range(40)))
    assert [a_BK[0, 0].item() for a_BK in answers] == [4.0 * i for i in range(40)]


@pytest.mark.parametrize("status", ["400", "413", "422"])
@pytest.mark.parametrize(
    ("said", "batch", "limit"), [("at most 8", 9, 8), ("at most 1", 2, 1), ("too many", 9, None)]
)
def test_a_refusal_for_size_names_the_limit(status, said, batch, limit):
    with Service(http(said.encode(), f"{status} No")) as server, teacher(server) as remote:
        assert refused(said, remote, torch.zeros(batch, 1, 2, 2), error=BatchTooLarge).limit == limit


OTHERS = [("400", "no", 9), ("404", "too many", 9), ("429", "too many", 9), ("400", "at most 9", 9)]
OTHERS += [("400", "at most 64", 9), ("400", "at most 0", 9), ("413", "too many", 1), ("413", "at most 8", 1)]


@pytest.mark.parametrize(("status", "said", "batch"), OTHERS)
def test_any_other_refusal_stays_what_it_is(status, said, batch):
    """Also one for size that no smaller batch could heal: a limit that was kept, a lone image."""
    with Service(http(said.encode(), f"{status} No")) as server, teacher(server) as remote:
        refusal = refused(said, remote, torch.zeros(batch, 1, 2, 2), error=Refused)
    assert (type(refusal), refusal.reason) == (Refused, status)


def test_the_wire_is_what_the_options_say():
    given = {
        "in_flight": 3,
        "attempts": 7,
        "patience": 11.0,
        "images_per_second": 5.0,
        "requests_per_second": 2.0,
    }
    options = ServiceOptions(url="", **given)
    assert request_policy_of(options) == RequestPolicy(3, 7, RequestPolicy().unusable, 11.0, 5.0, 2.0)

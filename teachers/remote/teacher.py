"""A service as a teacher: an adapter encodes and decodes, an endpoint transports."""

from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol
from uuid import uuid4

from torch import Tensor

from dfme.answers.reading import PartialAnswers
from dfme.errors import BatchTooLarge, Misfit, Misread, Refused, Text, Unusable
from dfme.spec import ImageSpec, LabelMode, RequestPolicy, TeacherInfo
from dfme.teachers.json_text import HEADER_LENGTH
from dfme.teachers.remote.endpoint import Endpoint, Reply
from dfme.teachers.remote.json_bodies import WRONG_NUMBER, outline, parse
from dfme.teachers.remote.secrets import Secrets

PASSING = ("an error", "another's answer")  # reasons that a further attempt may not meet
MAX_OUTLINE = 400
TOO_LARGE_STATUSES = ("400", "413", "422")  # with them services refuse a batch for its size, too


@dataclass(frozen=True)
class Query:
    """A request to be posted: where, what, and the headers that say how it is written."""

    path: str
    body: bytes
    headers: dict[str, str]


class Adapter(Protocol):
    """Writes requests to a service and reads its answers. It keeps no state: several threads ask at
    once.
    """

    def encode(self, images_BCHW: Tensor) -> Query:
        """The request for images float32 on the CPU, within the teacher's bounds."""

    def decode(self, reply: Reply, batch: int) -> Tensor | PartialAnswers:
        """Scores (B, K) float32, NaN where not revealed, or labels (B,) int64; Unusable for
        anything else.
        """

    def refused(self, reason: str, batch: int) -> PartialAnswers | None:
        """The answer that a refusal for this reason stands for; None where it is a refusal."""
        return None

    def most_bytes(self, batch: int) -> int:
        """The most bytes that an answer to so many images can have."""

    def batch_limit(self, refused: bytes) -> int | Literal[False] | None:
        """Batch limit by a refusal's body; None: fewer; False: another reason."""
        return False


class RemoteTeacher:
    """A teacher behind ``endpoint``. Each call is one attempt at one request, from any thread."""

    def __init__(
        self,
        endpoint: Endpoint,
        adapter: Adapter,
        spec: ImageSpec,
        num_classes: int,
        label_mode: LabelMode,
        max_batch: int | None,
        wire: RequestPolicy,
        class_names: tuple[str, ...] | None = None,
    ) -> None:
        self.spec = spec
        self.num_classes = num_classes
        self.label_mode = label_mode
        self.wire = wire
        self.info = TeacherInfo(max_batch=max_batch, class_names=class_names, remote=self)
        self._endpoint = endpoint
        self._adapter = adapter

    def ask(self, images_BCHW: Tensor, key: str) -> Tensor | PartialAnswers:
        """The answers to images (B, C, H, W): scores (B, K) float32 or labels (B,) int64.

        ``key`` goes along as ``Idempotency-Key``, by which a service can tell a repeated request.

        Raises:
            BatchTooLarge: the service takes fewer images at once; nothing was served.
            Refused: nothing was served.
            Unanswered: it may have been served, and no answer came.
            Unusable: what came is no answer.
        """
        return self._attempt(self._adapter, images_BCHW, key)

    def _attempt(self, adapter: Adapter, images_BCHW: Tensor, key: str) -> Tensor | PartialAnswers:
        batch = len(images_BCHW)
        query = adapter.encode(images_BCHW)
        headers = {**query.headers, "Idempotency-Key": key}
        try:
            reply = self._endpoint.post(query.path, query.body, headers, adapter.most_bytes(batch))
        except Refused as refused:
            if (answer := adapter.refused(refused.reason, batch)) is not None:
                return answer
            too_large = refused.reason in TOO_LARGE_STATUSES and batch > 1
            limit = adapter.batch_limit(refused.body) if too_large else False
            if limit is False or (limit is not None and not 1 <= limit < batch):
                raise refused from None
            raise BatchTooLarge(str(refused), limit) from None
        try:
            answers = adapter.decode(reply, batch)
        except Unusable as error:
            unusable = error
        else:
            if isinstance(answers, PartialAnswers) and answers.slip:
                answers = replace(
                    answers,
                    slip=str(_judged(Unusable(answers.slip), reply, self._endpoint.secrets)),
                )
            return answers
        # outside the handler, where nothing is chained to it
        raise _judged(unusable, reply, self._endpoint.secrets)

    def __call__(self, images: Tensor, /) -> Any:
        return self.ask(images, uuid4().hex)

    def close(self) -> None:
        """Close the connections; closing twice is no error."""
        self._endpoint.close()


def _judged(error: Unusable, reply: Reply, secrets: Secrets) -> Unusable:
    """A Misfit, with the document's outline, for an answer in JSON; else the error as it is.

    Neither quotes anything of an answer that repeats a part of a secret.
    """
    length = reply.headers.get(HEADER_LENGTH.lower(), "")
    text: Text = error.message
    try:
        document = outline(parse(reply.body[: int(length)] if length.isdecimal() else reply.body))
        is_answer = error.reason not in PASSING
    except Unusable:
        is_answer = False
    if is_answer:
        dots = "..." if len(document) > MAX_OUTLINE else ""
        text += f"; the answer was {document[:MAX_OUTLINE]}{dots}"
    body = reply.body.decode(errors="replace")
    if secrets.hide(body) != body:
        text = "expected an answer, got one that repeats a secret and is not shown"
    if is_answer and error.reason == WRONG_NUMBER:
        return Misread(text, error.reason, for_good=True)
    return Misfit(text, error.reason) if is_answer else Unusable(text, error.reason)

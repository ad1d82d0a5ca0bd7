"""Options of teachers that are services, with help below each field. No torch."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from dfme.config.fields import CONFIG, Basic, Count, Positive, Rate, accepted_by
from dfme.spec import RequestPolicy
from dfme.teachers.remote.consent import require_free


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class ServiceOptions:
    """Options of every teacher behind HTTP."""

    url: Basic[str]
    """where the service is, such as http://127.0.0.1:8080"""
    authorised_by: Basic[str | None] = None
    """who allowed these queries and why; needed for a host that is not this machine, and kept in
    the run's records; counts as a flag or as the environment variable DFME_AUTHORISED_BY, not from
    a file"""
    api_key_env: Basic[str | None] = None
    """name of the environment variable that holds the key, which is written nowhere; one that a
    file names is read only if allow_env has it"""
    allow_env: Basic[tuple[str, ...] | None] = None
    """names of the environment variables that files may have sent to the service, as api_key_env or
    as ${NAME} in an adapter; counts as a flag, not from a file"""
    api_key_header: Annotated[str, accepted_by(require_free)] = "Authorization"
    """header that carries the key; with Authorization it is sent as a Bearer token"""
    ca_file: str | None = None
    """certificates (PEM) to trust besides the system's, for a service with an authority of its own
    """
    in_flight: Annotated[int, Field(ge=1, le=64)] = 4
    """requests at once"""
    timeout: Positive = 30.0
    """seconds for one request in all"""
    attempts: Count = RequestPolicy.attempts
    """most sends of one request that may have been served; each is charged"""
    patience: Positive = RequestPolicy.patience
    """seconds for one request with all its attempts and waits"""
    images_per_second: Rate | None = None
    """most images per second that are sent; none: no limit"""
    requests_per_second: Rate | None = None
    """most requests per second that are sent; none: no limit"""


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class V2Options(ServiceOptions):
    """A model behind the Open Inference Protocol v2: KServe, Triton, MLServer, or run.py serve."""

    model: Basic[str]
    """name of the model"""
    version: str | None = None
    """version of the model; none: the one the server picks"""
    encoding: Literal["auto", "binary", "json"] = "auto"
    """of tensors: binary (an extension), json, or auto (binary where the server has it)"""
    input: str | None = None
    """name of the input tensor; none: the model's only one"""
    output: str | None = None
    """name of the output tensor; none: the model's only one"""
    layout: Literal["auto", "nchw", "nhwc"] = "auto"
    """order of an image's axes: nchw, nhwc, or auto (as the model's metadata have it)"""


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class JsonOptions(ServiceOptions):
    """Any HTTP API with JSON answers, described in a YAML file (see configs/adapters)."""

    adapter: Basic[str]
    """the YAML file: URL, headers, how an image is encoded, where the scores are in the answer"""
    url: Basic[str] = ""
    """in place of the file's url"""
    classes: Basic[tuple[str, ...] | str | None] = None
    """in place of the file's answer.classes: the labels in the order of the student's classes, or a
    text file with one label a line"""


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class TfServingOptions(JsonOptions):
    """A model behind TensorFlow Serving's REST predict: kind json with an adapter that ships with
    dfme.
    """

    adapter: str = "configs/adapters/tf_serving.yaml"


@dataclass(frozen=True, kw_only=True, config=CONFIG)
class HfApiOptions(JsonOptions):
    """A service like Hugging Face's image classification: kind json with an adapter that ships with
    dfme.
    """

    adapter: str = "configs/adapters/hf_api.yaml"

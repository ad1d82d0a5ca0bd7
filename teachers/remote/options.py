"""The options of teachers that are services; the docstrings are the help texts. No torch, no network here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dfme.spec import RequestPolicy


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """What every teacher behind HTTP has in common.

    Args:
        url: where the service is, such as http://127.0.0.1:8080
        authorised_by: who allowed these queries and why; needed for a host that is not this machine, and kept in
            the run's records
        api_key_env: name of the environment variable that holds the key; the key itself is written nowhere
        api_key_header: header that carries the key; with Authorization it is sent as a Bearer token
        ca_file: certificates (PEM) to trust besides the system's, for a service with an authority of its own
        in_flight: requests at once
        timeout: seconds for one request in all
        attempts: most sends of one request that may have been served; each is charged
        patience: seconds for one request with all its attempts and waits
        images_per_second: most images per second that are sent; none: no limit
        requests_per_second: most requests per second that are sent; none: no limit
    """

    url: str
    authorised_by: str | None = None
    api_key_env: str | None = None
    api_key_header: str = "Authorization"
    ca_file: str | None = None
    in_flight: int = 4
    timeout: float = 30.0
    attempts: int = RequestPolicy.attempts
    patience: float = RequestPolicy.patience
    images_per_second: float | None = None
    requests_per_second: float | None = None


@dataclass(frozen=True, kw_only=True)
class V2Options(ServiceOptions):
    """A model behind the Open Inference Protocol v2: KServe, Triton, MLServer, or run.py serve.

    Args:
        model: name of the model
        version: version of the model; none: the one the server picks
        encoding: of tensors: binary (an extension), json, or auto (binary where the server has it)
        input: name of the input tensor; none: the model's only one
        output: name of the output tensor; none: the model's only one
        layout: order of an image's axes: nchw, nhwc, or auto (as the model's metadata have it)
        classification: ask for the k best classes as texts (the classification extension); 0: for the scores
    """

    model: str
    version: str | None = None
    encoding: Literal["auto", "binary", "json"] = "auto"
    input: str | None = None
    output: str | None = None
    layout: Literal["auto", "nchw", "nhwc"] = "auto"
    classification: int = 0


@dataclass(frozen=True, kw_only=True)
class TfServingOptions(ServiceOptions):
    """A model behind TensorFlow Serving's REST predict.

    Args:
        model: name of the model
        version: version of the model; none: the latest
        signature: signature to call; none: serving_default
        input: name of the input, for a model with several; none: the only one
        output: name of the output, for a model with several; none: the only one
        layout: order of an image's axes: nhwc or nchw
    """

    model: str
    version: str | None = None
    signature: str | None = None
    input: str | None = None
    output: str | None = None
    layout: Literal["nhwc", "nchw"] = "nhwc"


@dataclass(frozen=True, kw_only=True)
class HfApiOptions(ServiceOptions):
    """An image classifier in the style of Hugging Face's inference API: a PNG in, a list of labels and scores out.

    Args:
        classes: the labels in the order of the student's classes, or a text file with one label a line
        top_k: labels to ask for; 0: as many as the service gives by itself
    """

    classes: tuple[str, ...] | str
    top_k: int = 0


@dataclass(frozen=True, kw_only=True)
class JsonOptions(ServiceOptions):
    """Any HTTP API with JSON answers, described in a YAML file (see configs/adapters).

    Args:
        adapter: the YAML file: URL, headers, how an image is encoded, where the scores are in the answer
        url: in place of the file's url
    """

    adapter: str
    url: str = ""

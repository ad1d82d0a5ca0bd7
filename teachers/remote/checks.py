"""Checks of a service's options before anything heavy is loaded and before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dfme.config.settings import TeacherConfig
from dfme.errors import UserError
from teachers.remote.consent import require_consent
from teachers.remote.json_api.adapter_file import load_adapter
from teachers.remote.secrets import Secrets


def check_service(config: TeacherConfig, options: Mapping[str, Any]) -> None:
    """UserError for a host without consent, a URL that is none, or a key that the environment does not hold."""
    require_consent(options["url"], options.get("authorised_by"))
    Secrets.from_environment([options.get("api_key_env")])


def check_plain_service(config: TeacherConfig, options: Mapping[str, Any]) -> None:
    """As ``check_service``, for kinds whose requests carry pixels as they are."""
    if config.mean is not None or config.std is not None:
        raise UserError(
            f"--teacher.mean and --teacher.std: {config.kind} sends pixels as they are; leave normalising to "
            "the service, or say with --teacher.bounds which pixels it takes"
        )
    check_service(config, options)


def check_json(config: TeacherConfig, options: Mapping[str, Any]) -> None:
    """As ``check_plain_service``, for the URL of the flags or the adapter's file; and every fault of that file."""
    api = load_adapter(options["adapter"])
    check_plain_service(config, {**options, "url": options.get("url") or api.description.url})

"""Checks of a service's options before anything heavy is loaded and before anything is sent."""

from collections.abc import Mapping, Sequence
from typing import Any

from dfme.config.settings import TeacherConfig
from dfme.errors import UserError
from dfme.teachers.remote.consent import host_of, require_consent
from dfme.teachers.remote.json_api.adapter_file import load_adapter, secrets_of
from dfme.teachers.remote.secrets import read_secrets


def check_service(config: TeacherConfig, options: Mapping[str, Any], asked: Sequence[str] = ()) -> str:
    """First line of a command: which environment variables go to which host; empty if none do.

    UserError for a host without consent, a URL that is none, or a key, or another variable that a file has
    ``asked`` for, that the environment does not hold or that nobody allowed to be sent.
    """
    require_consent(options["url"], options.get("authorised_by"))
    names = read_secrets(options, options["url"], *asked).names
    return f"sent to {host_of(options['url'])} from the environment: {', '.join(names)}" if names else ""


def check_json(config: TeacherConfig, options: Mapping[str, Any]) -> str:
    """Like ``check_plain_service``, for the URL of flags or adapter; and faults of that file."""
    if config.mean is not None or config.std is not None:
        raise UserError(
            f"--teacher.mean and --teacher.std: {config.kind} sends pixels as they are; leave normalising to "
            "the service, or say with --teacher.bounds which pixels it takes"
        )
    description = load_adapter(options["adapter"], options.get("classes")).description
    url = options.get("url") or description.url
    if not url:
        raise UserError(f"--teacher.url: neither the flag nor {options['adapter']} says where the service is")
    return check_service(config, {**options, "url": url}, secrets_of(description, url))

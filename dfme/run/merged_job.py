"""The job that merged layers of options come to. No torch."""

from dataclasses import replace
from typing import Any

from dfme.config.layers import Settings
from dfme.config.sections import Variant
from dfme.config.settings import ExtractConfig, Job, TeacherConfig
from dfme.config.values import Option, options_of
from dfme.methods import METHODS, SECTIONS, MethodEntry


def method_options(method: str, entry: MethodEntry) -> list[Option]:
    """A method's name, its own options, which ``--help`` shows of a custom one, and those of the
    sections that it heeds.
    """
    names = f"{', '.join(METHODS)}, or module:Class of your own"
    options = [Option("method.name", str, "dfme", names)]
    for option in options_of(entry.config, "method."):
        options.append(replace(option, basic=option.basic or ":" in method))
    for name in entry.sections:
        options += options_of(entry.section(name), f"{name}.")
    return options


def merged_job(
    settings: Settings,
    config: ExtractConfig,
    teacher: tuple[TeacherConfig, dict[str, Any]],
    method: str,
    entry: MethodEntry,
    when: tuple[Variant, ...],
    objects: dict[str, Any] | None = None,
) -> Job:
    """The job of these settings; what is wrong with its method's options is reported to them.

    ``teacher``: its common options and those of its kind. ``when``: variants of its recipe.
    ``objects``: what was handed over in
    Python.
    """
    return Job(
        config,
        *teacher,
        method,
        settings.build(entry.config, "method."),
        objects=objects or {},
        when=when,
        **{name: settings.build(entry.section(name), f"{name}.") for name in SECTIONS},
    )

"""Arguments of a command: its kind of teacher, its method, their options and the values.

Precedence: a flag, then (of wandb) a variable, then the YAML file, then the recipe of dfme that
lies below, then the field's default. Who allowed a service to be asked, and which secrets may go
there, is never a file's to say: ``Arguments._as_the_user_says``.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from dfme.cli.flags import FileFinder, Flag, read_file, split_flags, typed
from dfme.config.imports import find_target, own_options
from dfme.config.layers import BARE, Author, Layer, Settings, choose, value_of
from dfme.config.messages import (
    nearest,
)
from dfme.config.sections import wandb_environment
from dfme.config.settings import ExtractConfig, Job, TeacherConfig
from dfme.config.values import Option, build, missing, options_of, read_value
from dfme.errors import OptionError, UserError, say
from dfme.methods import SECTIONS, find_method
from dfme.owner_side import KINDS, kind_problems
from dfme.run import recipes
from dfme.run.checks import teacher_problems
from dfme.run.directory import resolve_from_run_start
from dfme.run.job import is_plain, locate, merged_job, method_options

RECIPE_ONLY = frozenset(
    {field.name for field in dataclasses.fields(ExtractConfig)} | {"method", "when", *SECTIONS}
)
"""Sections of an extraction's recipe besides its teacher: what other commands with a teacher may
skip.
"""


@dataclasses.dataclass(frozen=True)
class CommandInputs:
    """Inputs of a command: the model of its options, a teacher, a method.

    ``recipe`` finds the file where no --config is given; ``ignored``: its sections for other
    commands.
    """

    root: type[Any]
    teacher: bool = False
    method: bool = False
    recipe: FileFinder = lambda flags: None
    ignored: frozenset[str] = frozenset()


class Arguments:
    """One command's flags and file, with the options that hold for them, their values, and what is
    wrong.

    ``kind`` and ``method`` are those that were chosen, ``when`` the variants of the recipe.
    """

    def __init__(
        self, flags: Sequence[Flag], inputs: CommandInputs, below: Sequence[Layer] = ()
    ) -> None:
        """``below``: layers below the flags, in place of a file."""
        self._root = inputs.root
        self._has_typed_file = any(flag.key == "config" for flag in flags)
        files = [
            layer.without(*inputs.ignored) for layer in below or [read_file(flags, inputs.recipe)]
        ]
        layers = [*files, typed(flags)]
        self.kind = self.method = self._recipe = ""
        if inputs.teacher:
            self.kind, layers = choose(layers, "teacher.kind", "torch")
        if inputs.method:
            layers = self._with_recipe(layers)
        self.when = recipes.variants_of(*layers)
        layers = [layer.without("when") for layer in layers]
        self._own = self._own_options() if inputs.teacher else []
        variables = {"wandb": wandb_environment(value_of(layers[:-1], "wandb.mode"))}
        self._files = layers[:-1]
        self.settings = Settings(
            [*self._files, Layer(Author.ENVIRONMENT, variables), layers[-1]],
            self._all_options(inputs),
            self._kinds(),
        )
        self.options = self.settings.options
        self.report = self.settings.report
        self.finish = self.settings.finish
        if "recipe" in self.options:
            self.settings.values["recipe"] = self._recipe

    @cached_property
    def config(self) -> Any:
        """The command's own model; what is wrong with its values is said when ``finish`` is
        called.
        """
        return self.settings.build(self._root)

    @property
    def has_budget(self) -> bool:
        """True if the user named a budget: by a flag, in a file, or when the resumed run was
        started.
        """
        return self.settings.gives("budget") and (
            self.settings.author("budget") is not Author.SHIPPED
        )

    @property
    def in_force(self) -> list[Option]:
        """The options, with what the file and the recipe below it say as their defaults."""
        below_flags = Settings(self._files, self.options.values()).values | {"recipe": self._recipe}
        return [
            dataclasses.replace(option, default=below_flags.get(key, option.default))
            for key, option in self.options.items()
        ]

    def teacher(self) -> tuple[TeacherConfig, dict[str, Any]]:
        """The teacher's common keys and its kind's options; a parameter named like a common key is
        both.
        """
        values = self.settings.values | {"teacher.kind": self.kind}
        kind = KINDS.get(self.kind)
        options = (
            self._own_values(values)
            if kind is None
            else dict(vars(self.settings.build(kind.options, "teacher.")))
        )
        if kind is not None and "allow_env" in options:
            options |= self._as_the_user_says(options)
        if kind is not None and "trust" in options and not self._is_flag("trust"):
            options["trust"] = False  # a file may come from the one who made the program
        name = kind.file.option if kind is not None and kind.file is not None else ""
        if isinstance(options.get(name), str):
            options[name] = self._placed(name, options[name])
        teacher, problems = build(TeacherConfig, values, "teacher.")
        self.report(problems)
        self.report([*teacher_problems(teacher), *kind_problems(self.kind, options)])
        return teacher, options

    def _placed(self, name: str, path: str) -> str:
        """The path of a teacher's file; one on a run's record may begin where the run was
        started.
        """
        path = locate(path)
        origin = self.settings.origins.get(f"teacher.{name}")
        if origin is None or origin.author is Author.FLAG or os.path.exists(path):
            return path
        return resolve_from_run_start(origin.file, path)

    def _is_flag(self, name: str) -> bool:
        """True if a flag sets this option of the teacher."""
        return self.settings.author(f"teacher.{name}") is Author.FLAG

    def _own_values(self, values: dict[str, Any]) -> dict[str, Any]:
        """Parameters of a custom teacher; ``values`` keeps what fits the common key of its name."""
        common = _common()
        parameters: dict[str, Any] = {}
        for option in self._own:
            value = None if option.required else option.default
            is_set = option.key in values
            if is_set:
                value, problems = read_value(option, values.pop(option.key))
                self.report(problems)
            elif option.required:
                self.report([missing(option)])
            if is_set or is_plain(value):
                parameters[option.name] = value
            if value is not None and option.key in common:
                shared = read_value(common[option.key], value)[0]
                if shared is not None:
                    values[option.key] = shared
        return parameters

    def _as_the_user_says(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Consent and variables that a service may be sent, from flags or the environment alone.

        A file may come from the one who owns the host that it names.
        """
        by_flag = {name: value for name, value in options.items() if self._is_flag(name)}
        key = by_flag.get("api_key_env")
        return {
            "authorised_by": by_flag.get("authorised_by", os.environ.get("DFME_AUTHORISED_BY")),
            "allow_env": tuple(
                dict.fromkeys([*(by_flag.get("allow_env") or ()), *([key] if key else [])])
            ),
        }

    def job(self, config: ExtractConfig) -> Job:
        """The job of these settings with the teacher and the method that are asked for."""
        entry = find_method(self.method)
        return merged_job(self.settings, config, self.teacher(), self.method, entry, self.when)

    def _kinds(self) -> dict[str, str]:
        """What the options of a section depend on, for messages."""
        kinds = {"teacher": f" of teacher {self.kind}"} if self.kind else {}
        if self.method:
            kinds |= dict.fromkeys(("method", *SECTIONS), f" of method {self.method}")
        return kinds

    def _with_recipe(self, layers: Sequence[Layer]) -> list[Layer]:
        """The layers above the recipe that lies below them; the method and the recipe's name.

        Nothing lies below a run's own file, which says every option.
        """
        *files, flags = layers
        written = str(value_of(files, "recipe") or "")
        typed_name = flags.value("recipe")
        asked = "" if typed_name in (None, BARE) else str(typed_name)
        named = recipes.plain_name(asked or written)
        if any(layer.author is Author.RECORD for layer in files):
            if named != recipes.plain_name(written):
                raise UserError(f"--recipe: a run's own file says every option (recipe {written})")
            self._recipe = written
            self.method, fit = choose(layers, "method.name", "dfme", _of_other_methods)
            return fit
        (file,) = files
        shown = file.file
        is_shipped = file.author is Author.SHIPPED
        if asked and not self._has_typed_file:  # the file was found for its teacher alone
            teacher = {
                key: value for key, value in file.content.items() if key in recipes.OF_ITS_TEACHER
            }
            file = dataclasses.replace(file, content=teacher)
            shown = ""
        usual = recipes.by_name(named or recipes.GENERAL)["method"]["name"]
        self.method, fit = choose([file, flags], "method.name", usual, _of_other_methods)
        name, content = recipes.below(named, self.method)
        self._recipe = f"{shown} over {name}" if shown else name
        if is_shipped and not asked:
            self._recipe = Path(shown).stem
        return [Layer(Author.RECIPE, content), *fit]

    def _own_options(self) -> list[Option]:
        if self.kind in KINDS:
            return options_of(KINDS[self.kind].options, "teacher.")
        if ":" in self.kind:
            return own_options(find_target(self.kind), _common())
        expected = f"expected {', '.join(KINDS)}, module:Class or module:function"
        got = repr(self.kind)
        if not os.path.isfile(self.kind):
            raise OptionError("teacher", expected, got, nearest(self.kind, KINDS))
        hint = say("; for a file of weights say {teacher.checkpoint}, for .onnx {teacher:onnx}")
        raise OptionError("teacher", say("{}, got {}{}", expected, got, hint))

    def _all_options(self, inputs: CommandInputs) -> list[Option]:
        options = options_of(inputs.root)
        if inputs.teacher:
            own = {option.key for option in self._own}
            options += [
                *(option for key, option in _common().items() if key not in own),
                *self._own,
            ]
        if inputs.method:
            options += method_options(self.method, find_method(self.method))
        return options


def arguments_of(words: Sequence[str], inputs: CommandInputs, leading: str = "") -> Arguments:
    """The arguments that the words after a command give. UserError for words that are no flags.

    ``leading``: the option that a first word sets which is no flag.
    """
    first = [Flag(leading, word) for word in words[:1] if leading and not word.startswith("-")]
    return Arguments([*first, *split_flags(words[len(first) :])], inputs)


def _of_other_methods(method: str) -> set[str]:
    """Sections that were chosen for another method: how gradients are estimated, above all."""
    return {*SECTIONS} - ({*find_method(method).sections} - {"estimator"})


def _common() -> dict[str, Option]:
    """The keys that all kinds of teacher have, the built-in kinds named."""
    options = {option.key: option for option in options_of(TeacherConfig, "teacher.")}
    kind = options["teacher.kind"]
    return options | {
        kind.key: dataclasses.replace(kind, help=f"{', '.join(KINDS)}, or {kind.help}")
    }

"""Arguments of a command: its recipe, kind of teacher, method, options and their values.

Precedence: a flag, then (of wandb) a variable, then the YAML file, then the recipe of dfme that
lies below, then the field's default. Who allowed a service to be asked, and which secrets may go
there, is never a file's to say: ``Arguments._as_the_user_says``.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from dfme.cli.flags import Flag, Recipe, RecipeFinder, asks_to_resume, read_recipe, split_flags
from dfme.cli.teacher_side import KINDS, kind_problems
from dfme.config.imports import find_target, own_options
from dfme.config.messages import (
    MAX_LETTERS,
    members,
    nearest,
    shortened,
)
from dfme.config.settings import ExtractConfig, Job, TeacherConfig
from dfme.config.values import Option, build, flatten, missing, options_of, read_value
from dfme.config.wandb_settings import wandb_environment
from dfme.config.yaml_files import is_record
from dfme.errors import OptionError, Problem, Ref, UserError, as_flag, as_yaml_key, joined, say
from dfme.methods import METHODS, SECTIONS, find_method
from dfme.run import recipes
from dfme.run.checks import teacher_problems
from dfme.run.directory import resolve_from_run_start
from dfme.run.job import comes_with_dfme, is_plain, locate

T = TypeVar("T")

RECIPE_ONLY = frozenset(
    {field.name for field in dataclasses.fields(ExtractConfig)} | {"method", *SECTIONS}
)
"""Sections of an extraction's recipe besides its teacher: what other commands with a teacher may
skip.
"""

ROOM = (
    MAX_LETTERS - 40
)  # letters of the problems of one message, beside its first and its last words


@dataclasses.dataclass(frozen=True)
class CommandInputs:
    """Inputs of a command: the model of its options, a teacher, a method.

    ``recipe`` finds the file where no --config is given; ``ignored``: its sections for other
    commands.
    """

    root: type[Any]
    teacher: bool = False
    method: bool = False
    recipe: RecipeFinder = lambda flags: None
    ignored: frozenset[str] = frozenset()


class Arguments:
    """One command's flags, with the options that hold for them, their values, and what is wrong."""

    def __init__(
        self, flags: Sequence[Flag], inputs: CommandInputs, recipe: Recipe | None = None
    ) -> None:
        """``recipe``: recipe content used instead of --config."""
        self._root = inputs.root
        self._flags = {flag.key: flag for flag in flags if flag.key != "config"}
        self._file, content = recipe or read_recipe(flags, inputs.recipe)
        self._typed_file = any(flag.key == "config" for flag in flags)
        self._is_shipped = comes_with_dfme(Path(locate(self._file))) is not None
        self._is_whole = recipe is not None or asks_to_resume(flags)
        if self._typed_file:
            self._is_whole = is_record(locate(self._file))
        self._is_own = self._typed_file and not (self._is_whole or self._is_shipped)
        self._content = {
            name: value for name, value in content.items() if name not in inputs.ignored
        }
        self._problems: dict[str, tuple[Problem, str]] = {}
        self.kind = self._choose("teacher", "kind", "torch") if inputs.teacher else ""
        below: recipes.Content = {}
        self.method = self._recipe = self.recipe_below = ""
        if inputs.method:
            self.method, self._recipe, below = self._lay_below()
        self._own = self._own_options() if inputs.teacher else []
        self.options = {option.key: option for option in self._all_options(inputs)}
        self._below = {
            key: value for key, value in flatten(below, self.options) if key in self.options
        }
        self._in_file = dict(flatten(self._content, self.options))

    @cached_property
    def given(self) -> dict[str, Any]:
        """The value of every option that somebody gave, as it was written; unknown names are
        reported.
        """
        tracking = wandb_environment(self._in_file.get("wandb.mode")).items()
        by_environment = {
            f"wandb.{name}": text for name, text in tracking if f"wandb.{name}" in self.options
        }
        given = {**self._in_file, **by_environment}
        for key, flag in self._flags.items():
            option = self.options.get(key)
            given[key] = "true" if flag.text is None else flag.text
            if flag.text is None and option and bool not in members(option.type):
                del given[key]
                self.report([Problem(key, f"expected a value: {option.help or option.name}")])
        if "recipe" in self.options:
            given["recipe"] = self._recipe
        given |= {key: value for key, value in self._below.items() if key not in given}
        self.report(self._unknown(key) for key in given if key not in self.options)
        return given

    @cached_property
    def config(self) -> Any:
        """The command's own model; what is wrong with its values is said when ``finish`` is
        called.
        """
        return self._build(self._root)

    def _build(self, model: type[T], prefix: str = "", given: Mapping[str, Any] | None = None) -> T:
        built, problems = build(model, self.given if given is None else given, prefix)
        self.report(problems)
        return built

    @property
    def has_budget(self) -> bool:
        """True if the user named a budget: by a flag, in a file, or when the resumed run was
        started.
        """
        return "budget" in self._flags or ("budget" in self._in_file and not self._is_shipped)

    @property
    def in_force(self) -> list[Option]:
        """The options, with what the file and the recipe below it say as their defaults."""
        held = (
            {key: option.default for key, option in self.options.items()}
            | self._below
            | self._in_file
        )
        held["recipe"] = self._recipe
        return [
            dataclasses.replace(option, default=held[key]) for key, option in self.options.items()
        ]

    def says(self, key: str) -> bool:
        """True if a flag or the user's own file sets this option, not a shipped recipe or a run's
        record.

        A file may hold what flags of the same section make idle, and how to track if tracking is
        off.
        """
        section = key.partition(".")[0]
        changed = section == "wandb" or any(
            other.startswith(f"{section}.") for other in self._flags
        )
        return key in self._flags or (self._is_own and key in self._in_file and not changed)

    def gives(self, key: str) -> bool:
        """True if a flag or any file sets this option, and not just the recipe that lies below
        them.
        """
        return key in self._flags or key in self._in_file

    def report(self, problems: Iterable[Problem]) -> None:
        """Add problems, in the words of the flags or of the file that they come from; one about a
        value that is already known to be wrong is left out.
        """
        for problem in problems:
            key = problem.key
            name = as_flag(Ref(key))
            speech = as_flag
            if key in self._flags:
                name = f"--{self._flags[key].name}"
            elif key in self._in_file:
                name = f"{self._file}: {key}"
                speech = as_yaml_key
            text = f"{name}: {problem.text.spelled(speech)}"
            self._problems.setdefault(key, (problem, shortened(text, ROOM)))

    def finish(self, problems: Iterable[Problem] = ()) -> None:
        """Raise one UserError that names everything wrong, if anything is; of a great many, the
        first.
        """
        self.report(problems)
        if not self._problems:
            return
        wrong, texts = zip(*self._problems.values(), strict=True)
        text = texts[0]
        for number, other in enumerate(texts[1:], 1):
            if len(text) + len(other) + 2 > ROOM:
                text += f"; and {len(texts) - number} more like these"
                break
            text += f"; {other}"
        raise UserError(text, problems=wrong)

    def teacher(self) -> tuple[TeacherConfig, dict[str, Any]]:
        """The teacher's common keys and its kind's options; a parameter named like a common key is
        both.
        """
        given = self.given | {"teacher.kind": self.kind}
        kind = KINDS.get(self.kind)
        own = (
            self._own_values(given)
            if kind is None
            else dict(vars(self._build(kind.options, "teacher.")))
        )
        if kind is not None and "allow_env" in own:
            own |= self._as_the_user_says(own)
        if kind is not None and "trust" in own and "teacher.trust" not in self._flags:
            own["trust"] = False  # a file may come from the one who made the program
        option = kind.file.option if kind is not None and kind.file is not None else ""
        if isinstance(own.get(option), str) and option:
            path = locate(own[option])
            of_file = (
                f"teacher.{option}" in self._in_file.keys() - self._flags
                and not os.path.exists(path)
            )
            own[option] = resolve_from_run_start(self._file, path) if of_file else path
        teacher = self._build(TeacherConfig, "teacher.", given)
        self.report([*teacher_problems(teacher), *kind_problems(self.kind, own)])
        return teacher, own

    def _own_values(self, given: dict[str, Any]) -> dict[str, Any]:
        """Parameters of a teacher of one's own; of ``given`` stays what fits the common key of its
        name.
        """
        shared = _common()
        own: dict[str, Any] = {}
        for option in self._own:
            value = None if option.required else option.default
            if option.key in self.given:
                value, problems = read_value(option, given.pop(option.key))
                self.report(problems)
            elif option.required:
                self.report([missing(option)])
            if option.key in self.given or is_plain(value):
                own[option.name] = value
            common = None if value is None or option.key not in shared else shared[option.key]
            if common is not None and (read := read_value(common, value)[0]) is not None:
                given[option.key] = read
        return own

    def _as_the_user_says(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Consent and variables that a service may be sent, from flags or the environment alone.

        A file may come from the one who owns the host that it names.
        """
        said = {name: own[name] for name in own if f"teacher.{name}" in self._flags}
        key = said.get("api_key_env")
        return {
            "authorised_by": said.get("authorised_by", os.environ.get("DFME_AUTHORISED_BY")),
            "allow_env": tuple(
                dict.fromkeys([*(said.get("allow_env") or ()), *([key] if key else [])])
            ),
        }

    def job(self, config: ExtractConfig) -> Job:
        """The job of these settings with the teacher and the method that are asked for."""
        teacher, options = self.teacher()
        entry = find_method(self.method)
        method = self._build(entry.config, "method.")
        sections = {name: self._build(entry.section(name), f"{name}.") for name in SECTIONS}
        return Job(config, teacher, options, self.method, method, **sections)

    def _unknown(self, key: str) -> Problem:
        group = [say("{}", Ref(known)) for known in self.options if known.startswith(key + ".")]
        if group:
            such_as = joined(group[:3], ", ")
            text = "a group of options; expected one of its own such as " + such_as
            return Problem(key, text)
        section = key.partition(".")[0]
        of = f" of teacher {self.kind}" if section == "teacher" and self.kind else ""
        of = f" of method {self.method}" if section in ("method", *SECTIONS) and self.method else of
        near = nearest(key, self.options)
        unknown = f"unknown {'flag' if key in self._flags else 'key'}{of}"
        if near is None:
            return Problem(key, f"{unknown}; --help-all lists all")
        return Problem(key, unknown, near=Ref(near))

    def _lay_below(self) -> tuple[str, str, recipes.Content]:
        """The method, what is on record as the recipe, and the recipe that lies below the file and
        the flags.

        Nothing lies below a run's own file, which says all, or what stands in the place of a file.
        """
        flag = self._flags.get("recipe")
        written = str(self._content.pop("recipe", None) or "")
        file = self._file
        asked = (flag.text or "") if flag else ""
        named = recipes.plain_name(asked or written)
        if self._is_whole:
            if named != recipes.plain_name(written):
                raise UserError(f"--recipe: a run's own file says every option (recipe {written})")
            return self._choose("method", "name", "dfme"), written, {}
        if asked and not self._typed_file:  # the file that was found is there for its teacher alone
            kept = self._content.items()
            self._content = {key: value for key, value in kept if key in recipes.OF_ITS_TEACHER}
            file = ""
        method = self._choose(
            "method", "name", recipes.by_name(named or recipes.GENERAL)["method"]["name"]
        )
        found, below = recipes.below(named, method)
        # a recipe of dfme that is named as a file is run as it stands
        self.recipe_below = "" if self._is_shipped and self._typed_file else found
        if self._is_shipped and not asked:
            return method, Path(file).stem, below
        return method, f"{file} over {found}" if file else found, below

    def _choose(self, section: str, name: str, default: str) -> str:
        """The kind or method that is asked for; a recipe's section about another one is set aside.

        With the method go the sections that were chosen for it: how gradients are estimated, above
        all.
        """
        if isinstance(self._content.get(section), str):  # `method: static` is short for its name
            self._content[section] = {name: self._content[section]}
        written = self._content.get(section) or {}
        by_recipe = str(written.get(name, default)) if isinstance(written, Mapping) else default
        flag = self._flags.get(f"{section}.{name}")
        if flag is None or flag.text is None:
            return by_recipe
        if flag.text != by_recipe:
            self._content.pop(section, None)
            kept = (
                {*find_method(flag.text).sections} - {"estimator"}
                if section == "method"
                else {*SECTIONS}
            )
            for other in {*SECTIONS} - kept:
                self._content.pop(other, None)
        return flag.text or by_recipe

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
            entry = find_method(self.method)
            names = f"{', '.join(METHODS)}, or module:Class of your own"
            options.append(Option("method.name", str, "dfme", names))
            for option in options_of(entry.config, "method."):
                options.append(
                    dataclasses.replace(option, basic=option.basic or ":" in self.method)
                )
            for name in entry.sections:
                options += options_of(entry.section(name), f"{name}.")
        return options


def arguments_of(words: Sequence[str], inputs: CommandInputs) -> Arguments:
    """The arguments that the words after a command give. UserError for words that are no flags."""
    return Arguments(split_flags(words), inputs)


def _common() -> dict[str, Option]:
    """The keys that all kinds of teacher have, the built-in kinds named."""
    options = {option.key: option for option in options_of(TeacherConfig, "teacher.")}
    kind = options["teacher.kind"]
    return options | {
        kind.key: dataclasses.replace(kind, help=f"{', '.join(KINDS)}, or {kind.help}")
    }

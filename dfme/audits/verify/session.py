"""One verification: models opened, probes chosen and written, the suspect asked, figures and page
kept.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dfme.answers.reading import NO_ANSWER, answered_class
from dfme.audits.audit.examine import open_twin
from dfme.audits.verify.evidence import BATCH, Evidence, follow, sentences
from dfme.audits.verify.probes import Answer, Probes, choose, find_mistakes, left_out, p_reference
from dfme.compute.device import choose_device, derived_seed
from dfme.compute.modules import DeferredChecks
from dfme.config.settings import Job
from dfme.config.yaml_files import dump_yaml, load_yaml
from dfme.data.class_names import order_of
from dfme.errors import UserError
from dfme.files import write_text
from dfme.oracle.ledger_log import audit, read_history
from dfme.oracle.oracle import Oracle
from dfme.run.build import build_oracle, build_teacher, facts_of, files_of, served
from dfme.run.checkpoint import explain_load_errors, load_checkpoint, save_checkpoint
from dfme.run.directory import RunDirectory, run_start
from dfme.run.job import decisive, document, resume_command
from dfme.run.scores import batches, evaluation_images
from dfme.spec import ImageSpec
from dfme.version import __version__

IMAGES = 1_000  # held-out images that are looked at, unless a limit is given
OWN_ARCH = 3
"""References of the owner's architecture, at least; without any, 37 % of its twins look like
copies.
"""
PROBES = "probes.pt"
PLACES = ("model", "references", "record", "evaluation.root")
KEPT = ("budget", "seed", "device", "evaluation", "teacher")
Tell = Callable[[str], None]


class ServedLog(NamedTuple):
    """A log of the owner's service, the account in it that counts, and the defences that were
    served.
    """

    record: str
    account: str | None
    watermark: tuple[str, ...]


def verify(
    job: Job, paths: Sequence[Path], tell: Tell, log: ServedLog | None = None
) -> dict[str, Any]:
    """Ask the job's teacher, the suspect; what verify.json holds. ``paths``: weights, the owner's
    first.

    ``log``: what the owner's service marked in it is asked, in place of what the owner's model gets
    wrong. UserError for what cannot work, before the suspect is asked; TeacherError where it fails
    for good.
    """
    with ExitStack() as held:
        suspect = build_teacher(job, None, choose_device(job.config.device))
        held.callback(suspect.info.close)
        model = open_twin(paths[0], job, suspect.spec, suspect.num_classes, "--model")
        case = Case(job, model, paths[1:], tell, log)
        directory = held.enter_context(_open_directory(case, job, paths, suspect.spec.levels))
        probes, references = case.kept(directory)
        sha256 = _digest(probes)
        tell(f"{len(probes.images)} images are chosen, SHA-256 {sha256}; if stopped, go on with:")
        tell(f"  {resume_command(directory.path, job, 'verify')}")
        facts = facts_of(job, suspect)
        checks = DeferredChecks()
        oracle = build_oracle(job, suspect, directory, {}, checks, facts)
        held.enter_context(closing(oracle)).report_to(tell)
        ask = case.answer(
            suspect.spec, suspect.info.class_names or (), partial(oracle, purpose="check")
        )
        seen = follow(_matches(oracle, ask, probes), references["p_reference"])
        checks.verify()
        result = {
            "dfme": __version__,
            "suspect": facts["target"],
            "model": str(paths[0]),
            **references,
            **seen.told,
            "probes": sha256,
            "directory": str(directory.path),
            "ledger": asdict(oracle.ledger.totals()),
        }
        write_text(
            directory.path / "verify.json", json.dumps(result, indent=1, allow_nan=False) + "\n"
        )
        write_text(directory.path / "verify.md", "\n\n".join(sentences(result)) + "\n")
    return result


class Case:
    """White boxes of the owner's model and of references, and the owner's images.

    UserError for references that do not fit, or show no false alarms.
    """

    def __init__(
        self,
        job: Job,
        model: Any,
        references: Sequence[Path],
        tell: Tell,
        log: ServedLog | None = None,
    ) -> None:
        self._job = job
        self.log = log
        self._references = references
        self._tell = tell
        (spec, num_classes) = (model.spec, model.num_classes)
        others = [open_twin(path, job, spec, num_classes, "--references") for path in references]
        self._boxes = [model, *others]
        names = self.names = model.info.class_names or ()
        evaluation = replace(job.config.evaluation, limit=job.config.evaluation.limit or IMAGES)
        self._asked = list[Any](self._boxes)
        if log is None:
            data = evaluation_images(
                evaluation, ImageSpec(spec.shape), num_classes, names, tell=tell
            )
        else:
            data, self._asked[0] = served(model, *log)
        if data is None or evaluation.mean is not None:
            raise UserError(
                "--references: expected --evaluation.dataset with it, images within 0 and "
                "1 and no --evaluation.mean"
            )
        self._data = replace(data, class_names=data.class_names or names)
        if log is not None:
            undefended = self.answer(spec, names, model)
            self._data = replace(
                self._data, labels=torch.cat([undefended(x_BCHW) for x_BCHW in batches(data)])
            )
        self.inputs = self._checked_inputs()

    def _checked_inputs(self) -> list[str]:
        """Digests of what the probes follow from. UserError for references that show no false
        alarms.
        """
        nets = [box.info.network.state_dict() for box in self._boxes]
        digests = [_digest(net.values()) for net in nets]
        (model, *others) = ({name: weight.shape for name, weight in net.items()} for net in nets)
        if len(set(digests)) < len(digests):
            raise UserError(
                "--references: expected different models, none of them yours, got one file twice"
            )
        if (alike := others.count(model)) < OWN_ARCH:
            raise UserError(
                f"--references: expected {OWN_ARCH} or more of your model's architecture, "
                f"got {alike}; train them with other seeds by run.py train-teacher"
            )
        images = _digest(chain([self._data.required_labels], batches(self._data)))
        return [*digests, images, str(self._job.config.seed)]

    def changed(self, recorded: Sequence[str]) -> list[str]:
        """The options whose inputs are not those from which probes on file follow."""
        if len(recorded) != len(self.inputs):
            return ["references"]
        images = "evaluation.dataset" if self.log is None else "record"
        names = ["model", *["references"] * len(self._references), images, "seed"]
        pairs = zip(names, recorded, self.inputs, strict=True)
        return list(dict.fromkeys(name for name, before, now in pairs if before != now))

    def answer(
        self, spec: ImageSpec, names: Sequence[str], ask: Callable[[Tensor], Tensor]
    ) -> Answer:
        """The classes that a model answers, in the order of the owner's classes; ``NO_ANSWER`` for
        none.
        """
        (low, high) = spec.bounds
        order_K = order_of(self._boxes[0].num_classes, names, self._data.class_names)

        def classes(x_BCHW: Tensor) -> Tensor:
            class_B = answered_class(ask(x_BCHW * (high - low) + low)).cpu()
            return torch.where(class_B == NO_ANSWER, NO_ANSWER, order_K[class_B.clamp(min=0)])

        return classes

    def choose(self, most: int, levels: int | None) -> tuple[Probes, dict[str, Any]]:
        """Probes, quantised to so many levels, and what the references come to. UserError where no
        answers to them could tell anything.
        """
        wrong = "was made to answer wrongly" if self.log else "gets wrong"
        self._tell(f"looking for images that your model {wrong}, and the references not as it does")
        rng = torch.Generator().manual_seed(derived_seed(self._job.config.seed, "verify"))
        spec = ImageSpec(self._boxes[0].spec.shape, levels=levels)
        (model, *others) = (
            self.answer(box.spec, box.info.class_names or (), ask)
            for box, ask in zip(self._boxes, self._asked, strict=True)
        )
        mistakes = find_mistakes(self._data, spec, model, others, None if self.log else rng)
        at = choose(mistakes, most, rng)
        share = p_reference(mistakes, most, rng)
        if not Evidence(len(at), len(at), share).sure:
            option = "--record" if self.log else "--evaluation.dataset"
            raise UserError(
                f"{option}: found {len(at)} images to ask, too few where an independent "
                f"model matches on {share:.0%}; give more of them, or a larger --budget"
            )
        seen = zip(self._references, left_out(mistakes, most, rng), strict=True)
        rows = [{"file": str(path), **evidence.told} for path, evidence in seen]
        references = {"marked": self.log is not None, "p_reference": share, "references": rows}
        return Probes(mistakes.images[at], mistakes.expected_N[at]), references

    def kept(self, directory: RunDirectory) -> tuple[Probes, dict[str, Any]]:
        """The probes on file, and what the references came to. UserError if those of other
        inputs.
        """
        path = directory.path / PROBES
        with explain_load_errors(path):
            content = load_checkpoint(path)
            if keys := self.changed(content["inputs"]):
                raise _other_values(directory, keys)
            return Probes(content["images"], content["expected"]), json.loads(content["found"])


def _open_directory(
    case: Case, job: Job, paths: Sequence[Path], levels: int | None
) -> RunDirectory:
    """A new directory with probes in it, or the one of the verification being resumed.

    One that was killed before its probes were on file has asked nothing: they are chosen then.
    """
    config = job.config
    settings = _settings(case, job, paths)
    if config.resume:
        directory = RunDirectory.open_for_resume(Path(config.out or ""))
        with ExitStack() as held:
            held.callback(directory.close)
            _require_same(directory, settings, job)
            if not (directory.path / PROBES).exists() and not _asked(directory):
                _save(directory, case, case.choose(int(config.budget), levels))
            held.pop_all()
        return directory
    chosen = case.choose(int(config.budget), levels)
    directory = RunDirectory.create(Path(config.out or RunDirectory.free_name(Path("runs/verify"))))
    directory.is_new_run = True
    directory.write_config(dump_yaml(settings))
    _save(directory, case, chosen)
    return directory


def _save(directory: RunDirectory, case: Case, chosen: tuple[Probes, dict[str, Any]]) -> None:
    probes, references = chosen
    content = {"inputs": case.inputs, "found": json.dumps(references), **probes._asdict()}
    save_checkpoint(directory.path / PROBES, content)


def _asked(directory: RunDirectory) -> bool:
    """True if anything may have been asked of the suspect."""
    return directory.ledger.is_file() and bool(audit(directory.ledger).requests)


def _settings(case: Case, job: Job, paths: Sequence[Path]) -> dict[str, Any]:
    """The content of config.yaml."""
    (model, *references) = (str(path.absolute()) for path in paths)
    settings = {name: document(job)[name] for name in KEPT}
    if case.log:
        settings.update(case.log._asdict())
    return {"model": model, "references": references, **settings}


def _require_same(directory: RunDirectory, settings: Mapping[str, Any], job: Job) -> None:
    """UserError, with the keys, for other values than the verification was begun with.

    Where models and images lie is free; what they are is compared with the probes
    (``Case.changed``), and the suspect's files with their digests in the ledger.
    """
    recorded = load_yaml(directory.config, own=True)
    before = decisive(json.loads(json.dumps(recorded)))
    now = decisive(json.loads(json.dumps(settings)))
    free = {*PLACES}
    if directory.ledger.is_file() and (read_history(directory.ledger).teacher or {}).get("files"):
        files, option = files_of(job)
        free |= {f"teacher.{name}" for name in (*files, option)}
    else:
        _place_suspect(job, run_start(directory.config) or Path(), before)
        _place_suspect(job, Path(), now)
    keys = [key for key in {**before, **now} if key not in free and before.get(key) != now.get(key)]
    if recorded.get("budget") != settings["budget"]:
        keys.append("budget")
    if keys:
        raise _other_values(directory, keys)


def _place_suspect(job: Job, start: Path, content: dict[str, Any]) -> None:
    """Make the paths of the suspect's files absolute: one file may be named in several ways."""
    files, option = files_of(job)
    for name in (*files, option):
        path = content.get(f"teacher.{name}")
        if isinstance(path, str):
            content[f"teacher.{name}"] = os.path.abspath(start / path)


def _other_values(directory: RunDirectory, keys: Sequence[str]) -> UserError:
    return UserError(
        f"--resume: this verification was begun with other values of {', '.join(keys)} (see "
        f"{directory.config}); leave those flags out, or begin anew in another --out"
    )


def _digest(tensors: Iterable[Tensor]) -> str:
    """SHA-256 of the tensors' bytes, one after the other."""
    code = hashlib.sha256()
    for tensor in tensors:
        code.update(tensor.cpu().contiguous().numpy().tobytes())
    return code.hexdigest()


def _matches(oracle: Oracle, classes: Answer, probes: Probes) -> Iterator[list[bool]]:
    """Matches batch by batch, up to the budget, of the images that are given a
    class.
    """
    for start in range(0, len(probes.images), BATCH):
        if count := min(BATCH, oracle.remaining):
            part = slice(start, start + count)
            class_B = classes(probes.images[part])
            given_B = class_B != NO_ANSWER
            yield (class_B == probes.expected[part])[given_B].tolist()

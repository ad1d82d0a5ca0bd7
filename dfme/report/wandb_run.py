"""A run in Weights & Biases, in addition to the run's own files.

An error of wandb is reported once, in one line; the run continues without it. History steps are the
queries spent, so a resumed online run adds no second row for what was logged before: wandb drops
steps that lie behind. Offline, each part of a run is a folder under the same id.
"""

import importlib
import json
import os
import re
import shlex
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dfme.config.sections import WandbConfig
from dfme.errors import UserError
from dfme.files import make_folder, replacing
from dfme.report.run_files import read_object, to_picture

SECRET = re.compile("KEY|TOKEN|SECRET|PASS")
"""In the name of a variable whose value is not shown."""


class WandbRun:
    """One wandb run, continued under the same id whenever the run directory is resumed.

    ``document`` is the effective configuration; ``notify`` takes the one line there may be to say.
    With ``mode: off`` every call does nothing and wandb is not even imported.
    """

    def __init__(
        self,
        config: WandbConfig,
        run_dir: Path,
        document: Mapping[str, Any],
        notify: Callable[[str], None],
    ) -> None:
        self._notify = notify
        self._run_dir = run_dir.resolve()
        self._wandb: Any = None
        self._run: Any = None
        if config.mode != "off":
            self._attempt(lambda: self._open(config, document))

    def log(self, queries: int, metrics: Mapping[str, float]) -> None:
        """Log numbers against the queries spent."""
        if self._run is not None:
            self._attempt(lambda: self._run.log({**metrics, "queries": queries}, step=queries))

    def images(self, queries: int, pixels_NCHW: NDArray[np.uint8]) -> None:
        """Log generated queries."""
        if self._run is not None:
            self._attempt(
                lambda: self._run.log({"samples": self._pictures(pixels_NCHW)}, step=queries)
            )

    def _pictures(self, pixels_NCHW: NDArray[np.uint8]) -> list[Any]:
        return [self._wandb.Image(to_picture(image_CHW)) for image_CHW in pixels_NCHW]

    def finish(self, summary: Mapping[str, Any], student: Path) -> None:
        """Write the final summary, hand over the student's file and the report beside it, and end
        the run.
        """
        if self._run is not None:
            self._attempt(lambda: self._deliver(summary, student))
        self.close(exit_code=0)

    def close(self, exit_code: int = 1) -> None:
        """End the run as it stands; without ``finish`` before, wandb shows it as interrupted."""
        run = self._run
        self._run = None
        if run is not None:
            self._attempt(lambda: self._end(run, exit_code))

    def _end(self, run: Any, exit_code: int) -> None:
        run.finish(exit_code=exit_code)
        if run.offline:  # each part of a resumed run is a folder, all under one id
            parts = sorted(Path(run.dir).parents[1].glob(f"offline-run-*-{run.id}"))
            command = shlex.join(["wandb", "sync", *map(str, parts)])
            self._notify(f"wandb: recorded offline; upload it with:\n  {command}")

    def _open(self, config: WandbConfig, document: Mapping[str, Any]) -> None:
        # the client's telemetry would call its maker even offline, and delay the exit
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._wandb = importlib.import_module("wandb")
        require_valid_variables(self._wandb.Settings)
        self._wandb.setup(self._wandb.Settings(silent=True))
        if config.mode == "offline" or not self._go_online(config, document):
            self._run = self._init(config, document, "offline")
        self._run.define_metric("queries")
        self._run.define_metric("*", step_metric="queries")

    def _go_online(self, config: WandbConfig, document: Mapping[str, Any]) -> bool:
        """Begin the run at the server; if that cannot be, say why."""
        obstacle = "no API key (run `wandb login` or set WANDB_API_KEY)"
        try:
            beside_another = self._wandb.run is not None  # of the user's, which is logged in
            if beside_another or self._wandb.login(prompt=False):
                self._run = self._init(config, document, "online")
                self._notify(f"wandb: {self._run.url}")
                return True
        except Exception as error:
            obstacle = one_line(error)
            if self._wandb.run is None:  # else the id of the failed attempt stays in use
                self._wandb.teardown()
        self._notify(f"wandb: {obstacle}; tracking goes on offline")
        return False

    def _init(self, config: WandbConfig, document: Mapping[str, Any], mode: str) -> Any:
        folder = os.environ.get("WANDB_DIR")
        if folder and not _takes_files(
            folder
        ):  # the client would take a temporary folder without a word
            expected = "expected a folder that can be written to"
            self._notify(
                f"wandb: WANDB_DIR={folder!r}: {expected}; it is recorded in the run's own"
            )
            folder = None
        if not folder:
            make_folder(self._run_dir / "wandb")
        return self._wandb.init(
            project=config.project,
            entity=config.entity,
            name=config.name or self._run_dir.name,
            group=config.group,
            tags=config.tags,
            config=dict(document),
            dir=folder or str(self._run_dir),
            id=self._identity(),
            resume="allow",
            reinit="create_new",
            mode=mode,
            settings=self._wandb.Settings(
                silent=True,
                console="off",  # no capture of the terminal
                save_code=False,
                disable_git=True,
                init_timeout=8.0,  # seconds for the server to accept the run
                finish_timeout=60.0,  # to upload what is left; the rest is for `wandb sync`
            ),
        )

    def _identity(self) -> str:
        """The run's id in wandb: the one in wandb.json, or a new one that is kept there."""
        path = self._run_dir / "wandb.json"
        identity = str(read_object(path).get("id", ""))
        if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", identity):  # wandb makes file names of it
            return identity
        identity = uuid.uuid4().hex[:12]
        with replacing(path) as file:
            file.write(json.dumps({"id": identity}).encode() + b"\n")
        return identity

    def _deliver(self, summary: Mapping[str, Any], student: Path) -> None:
        self._run.summary.update(dict(summary))
        for name, kind, file in (
            ("student", "model", student),
            ("report", "report", student.with_name("report.html")),
        ):
            if file.exists():
                artifact = self._wandb.Artifact(
                    f"{name}-{self._run.id}", type=kind, metadata=dict(summary)
                )
                artifact.add_file(
                    str(file), policy="immutable", skip_cache=True
                )  # no second copy elsewhere
                self._run.log_artifact(artifact)

    def _attempt(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            self._run = None
            self._notify(
                f"wandb: {one_line(error)}; the run goes on without it, recorded in metrics.jsonl"
            )


def require_valid_variables(settings: Callable[[], Any]) -> None:
    """UserError that names the variable of the environment which wandb's settings do not take, if
    one is.
    """
    for name, value in os.environ.items():
        if not name.startswith("WANDB_"):
            continue
        try:
            settings().update_from_env_vars({name: value})
        except Exception as error:
            text = "..." if SECRET.search(name) else f"{value:.60}"
            raise UserError(f"variable {name}={text}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """What was wrong, in the words of the client, which checks its settings by pydantic."""
    faults = error.errors() if hasattr(error, "errors") else []
    text = str(faults[0]["msg"]) if faults else str(error)
    return " ".join(text.split())[:200]


def _takes_files(folder: str) -> bool:
    """True of a folder that can be written to, or can be made."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def one_line(error: Exception) -> str:
    """An error's type and the first line of its message; of ours the message alone."""
    text = str(error).strip().splitlines()
    if isinstance(error, UserError):
        return text[0]
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__

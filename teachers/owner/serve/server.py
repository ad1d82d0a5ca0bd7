"""Serving a teacher: a socket, a uvicorn server on it, started and stopped."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn

from dfme.compute.device import ieee_fp32
from dfme.errors import UserError
from dfme.spec import Teacher
from dfme.teachers.open_inference.server import Service
from dfme.teachers.options import ServeConfig
from dfme.teachers.owner.defences.wrapper import behind
from dfme.teachers.owner.guard.gate import Model
from dfme.teachers.owner.guard.meter import Meter
from dfme.teachers.owner.serve.app import MAX_CONNECTIONS, Connection, Keys, make_app
from dfme.teachers.owner.watch.alarms import AlarmFile
from dfme.teachers.owner.watch.record import Recording, account_tag

IDLE_SECONDS = 120  # clients give a connection up sooner, so no request comes on a closing one
SHUTDOWN_SECONDS = 30  # requests under way may take to end once the server is to stop


class Serving:
    """A teacher at a host and port, bound at once: ``with Serving(teacher) as service:
    service.url``.

    Port 0 is a free one. ``max_batch`` only lowers the teacher's own. Clients must send ``key``, or
    one of several. ``threads`` are those of the arithmetic. ``tell`` hears of alarms. UserError if
    the address cannot be had.
    """

    def __init__(
        self,
        teacher: Teacher,
        name: str = "teacher",
        host: str = "127.0.0.1",
        port: int = 0,
        max_batch: int | None = None,
        key: str | Sequence[str] | None = None,
        images_per_second: float | None = None,
        requests_per_second: float | None = None,
        threads: int = 0,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._socket = _listen(host, port)
        address, self.port = self._socket.getsockname()[:2]
        self.loopback = ipaddress.ip_address(address.partition("%")[0]).is_loopback
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        keys = [key] if isinstance(key, str) else key or ()
        limits = [limit for limit in (max_batch, teacher.info.max_batch) if limit]
        self.service = Service(
            name,
            teacher.spec,
            teacher.num_classes,
            teacher.label_mode,
            max_batch=min(limits, default=None),
        )
        self.meter = Meter(images_per_second, requests_per_second)
        self._model = Model(behind(teacher), threads)
        self._guard = make_app(
            self.service, self._model, teacher, meter=self.meter, threads=threads, tell=tell
        )
        self._server = uvicorn.Server(
            uvicorn.Config(
                Keys(self._guard, keys, self.meter) if keys else self._guard,
                http=Connection,
                backlog=MAX_CONNECTIONS // 2,  # that many are taken before one is looked at
                log_config=None,
                log_level="warning",
                access_log=False,
                lifespan="off",
                ws="none",
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), daemon=True
        )

    def __enter__(self) -> Serving:
        """Serve in a thread of its own; requests may come at once."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Answer requests under way, and end."""
        self._server.should_exit = True
        self._thread.join()
        self._close()

    def run(self) -> None:
        """Serve until Ctrl-C or SIGTERM, from the main thread; requests under way are answered
        first.
        """
        with contextlib.ExitStack() as undo:
            undo.callback(self._close)
            for number in (
                signal.SIGINT,
                signal.SIGTERM,
            ):  # uvicorn raises them again at its end, harmlessly
                undo.callback(
                    signal.signal, number, signal.signal(number, self._server.handle_exit)
                )
            self._server.run(sockets=[self._socket])

    def _close(self) -> None:
        self._socket.close()
        self._guard.close()
        self._model.close()


def serve(teacher: Teacher, config: ServeConfig, tell: Callable[[str], None]) -> str:
    """Serve a teacher until Ctrl-C or SIGTERM; return its counts. ``tell`` gets the address."""

    def say(line: str) -> None:
        with contextlib.suppress(
            OSError
        ):  # where the disk is full, the output may lie on it as well
            tell(line)

    watch = teacher.info.watch
    if watch and config.alarm_file:
        watch.alarmed = AlarmFile(Path(config.alarm_file), say)
    if watch and config.record and config.retain_days:
        most = int(config.record_max_mb * 1e6) if config.record_images else 0
        watch.record = Recording(Path(config.record), config.retain_days, most, say)
    keys = {name: os.environ[name].strip() for name in config.key_names}
    serving = Serving(
        teacher,
        str(config.model),
        config.host,
        config.port,
        max_batch=config.max_batch,
        key=[*keys.values()],
        images_per_second=config.images_per_second,
        requests_per_second=config.requests_per_second,
        threads=config.threads,
        tell=say,
    )
    tell(_opening(serving, config))
    if watch and watch.names:
        tell(f"watched by {', '.join(watch.names)}; on an alarm: {watch.on_alarm}")
    if watch and keys:
        tell(f"accounts: {', '.join(f'{name} {account_tag(key)}' for name, key in keys.items())}")
    if watch and watch.record:
        images = "images, " if config.record_images else ""
        tell(f"recording {images}digests and scores, deleted after {config.retain_days} days")
    if defences := teacher.info.defences:
        tell(
            f"behind {'+'.join(defences)}, of which no client is told; their state ends with this "
            "process"
        )
    if not serving.loopback:
        beyond = f"{serving.url} is open beyond this machine"
        if config.api_key_env:
            tell(f"{beyond}: whoever reaches it and has the key can query it, unencrypted")
        else:
            tell(
                f"WARNING: {beyond}, and WHOEVER REACHES IT CAN QUERY IT: give --api-key-env, or "
                "no --host"
            )
    with ieee_fp32():  # as a local teacher is asked where its answers' last bits matter
        serving.run()
    report = teacher.info.stateful.report() if teacher.info.stateful else {}
    return "; ".join(
        [serving.meter.summary(), *(f"{name} {counts}" for name, counts in report.items())]
    )


def _opening(serving: Serving, config: ServeConfig) -> str:
    """Lines on what is served where, and how to clone it."""
    service = serving.service
    shape = "x".join(map(str, service.spec.shape))
    batch = f", at most {service.max_batch} a request" if service.max_batch else ""
    levels = f" of {service.spec.levels} levels" if service.spec.levels else ""
    words = [
        "python run.py --teacher v2",
        f"--teacher.url {serving.url}",
        f"--teacher.model {service.name}",
    ]
    if config.api_key_env:
        words.append(f"--teacher.api-key-env {config.key_names[0]}")
    if not serving.loopback:
        words.append('--teacher.authorised-by "WHO AND WHY"')
    return (
        f"{service.name} at {serving.url}: {shape} images{levels}{batch}; {service.num_classes} "
        "classes; "
        f"label mode {service.label_mode}; extract: {' '.join(words)}"
    )


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Its protocol is named, else asyncio would not turn Nagle's algorithm off
    on it.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(128)
        except BaseException:
            listening.close()
            raise
    except (OSError, UnicodeError) as error:  # the latter of a name that no host can have
        problem = f"cannot listen there: {error.args[-1]}; give another --port (0: a free one)"
        raise UserError(f"--host {host} --port {port}: {problem}") from None
    return listening

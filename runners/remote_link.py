"""The reference engine on a host behind ssh: its source and models are put there, its tables are brought back."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
import time
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from runners import engine_log
from runners.base import CellJob, EngineFailure, ServerSpec
from runners.devices import gpus_of
from runners.gpu_locks import lock_names
from runners.hosts import Host, HostFailure
from runners.hosts.shipping import model_there, source
from runners.keeper import LOCKED
from runners.ports import LOOPBACK
from runners.server import describe_exit
from runners.worker_door import KEY, decoded

START_TIMEOUT_S = 120.0  # until the process listens; models load after that
GRACE_S = 2.0
KEPT_DAYS = 2  # of folders of runs that nobody has touched
POLL_S = 0.1
DYING_S = 10.0


class RemoteLink:
    """See :class:`runners.links.Link`. All that the process prints goes to ``log``, and by cell to its ``server.log``.

    Raises:
        HostFailure: the host is down, or full.
        EngineFailure: the process does not come up.
    """

    def __init__(self, host: Host, python: str, spec: ServerSpec, log: Path) -> None:
        self._host, self._log = host, log
        self._job: CellJob | None = None
        self._mark = 0  # bytes of the log that earlier cells have
        self._folder = host.path("runs", secrets.token_hex(8))
        self._open = contextlib.ExitStack()
        key = secrets.token_hex(16)
        # What clients left behind that were killed: every cell touches the folder of its own.
        old = ["-mindepth", "1", "-maxdepth", "1", "-mtime", f"+{KEPT_DAYS}", "-exec", "rm", "-rf", "--", "{}", "+"]
        host.run(["find", host.path("runs"), *old])
        # Its GPU is locked there by the name that every engine uses.
        alone = replace(host.config, share_gpus=True)
        there = replace(spec, model=model_there(host, spec.model), host=alone)
        locks = lock_names(host, gpus_of(spec.device, 1, host.config))
        port = host.claim_port(None)
        env = {"PYTHONPATH": source(host), KEY: key, "PYTHONUNBUFFERED": "1"}
        argv = [python, "-m", "runners.worker_door", str(port)]
        self._process = host.start(argv, env=env, log=log, grace_s=GRACE_S, locks=locks)
        try:
            self._connection = self._connect(self._open.enter_context(host.forward(port)), key.encode())
            self._connection.send(there)
        except BaseException:
            self.end()
            raise

    def send(self, message: object) -> None:
        self._connection.send(message)

    def receive(self, timeout_s: float) -> tuple[Any, ...] | None:
        if not self._connection.poll(max(timeout_s, 0.0)):
            return None
        return decoded(self._connection.recv_bytes())

    def job(self, job: CellJob) -> CellJob:
        self._job = job
        there = f"{self._folder}/{job.cell.cell_id}"
        made = self._host.run(["mkdir", "-p", "--", there])
        if not made.ok:
            raise HostFailure(f"{there} cannot be made on host {self._host.config.name}: {made.said}")
        return replace(job, folder=Path(there))

    def fetch(self, job: CellJob) -> None:
        there = f"{self._folder}/{job.cell.cell_id}"
        with tempfile.TemporaryDirectory(prefix="ddbench-cell-") as scratch:
            here = Path(scratch) / "cell"
            self._host.get(there, here)
            for path in sorted(here.iterdir()):
                shutil.copyfile(path, job.folder / path.name)
        self._host.run(["rm", "-rf", "--", there])
        self._keep_log()

    def death(self) -> EngineFailure:
        code = self._process.wait(DYING_S)
        said = engine_log.cause(engine_log.read_tail(self._log, self._mark))
        self._keep_log()
        if self._process.lost is not None:
            return HostFailure(f"the engine process was lost: {self._process.lost}")
        if code == LOCKED:
            return EngineFailure(f"the engine got no GPU (host.share_gpus): {said}", "busy")
        how = "it closed its line" if code is None else describe_exit(code)
        return EngineFailure(f"the engine process died ({how}){f': {said}' if said else ''}")

    def end(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # it may never have been made
            self._connection.close()
        problem = self._process.stop()
        self._open.close()
        if problem is not None:
            with self._log.open("a", encoding="utf-8") as stream:
                stream.write(f"ddbench: {problem}\n")
        self._keep_log()
        with contextlib.suppress(EngineFailure):  # a host that is down keeps its scratch folder
            self._host.run(["rm", "-rf", "--", self._folder])

    def _connect(self, port: int, key: bytes) -> Connection:
        """The line to the process, as soon as it listens: the tunnel is there before, and closes what comes early."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                return Client((LOOPBACK, port), authkey=key)
            except (OSError, EOFError):
                if self._process.poll() is not None:
                    raise self.death() from None
            except AuthenticationError:
                raise EngineFailure("another process answers on the port of the reference engine") from None
            if time.monotonic() > deadline:
                raise EngineFailure(f"the engine process did not answer in {START_TIMEOUT_S:g} s", "start")
            time.sleep(POLL_S)

    def _keep_log(self) -> None:
        """Appends what was printed since the last cell to the log of this one."""
        if self._job is None or not self._log.exists() or not self._job.folder.is_dir():
            return
        data = engine_log.read_part(self._log, self._mark)
        self._mark += len(data)
        with (self._job.folder / "server.log").open("ab") as stream:
            stream.write(data)

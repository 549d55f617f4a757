"""The process in which the reference engine lives: loads the pair, then measures the cells it is sent.

Messages to the parent are tuples: ``("ready", facts)``, ``("refused", key, value, allowed)``, ``("busy", text)``,
``("crashed", text)``, ``("progress", done, all)``, ``("alive",)`` while tokens come, ``("done", CellOutcome)``,
``("asked", facts)``, ``("texts", texts)``. From the parent come :class:`CellJob`, :class:`NewPrompts` and
:class:`Answers` values; the end of the pipe ends the process.
"""

from __future__ import annotations

import errno
import gc
import hashlib
import os
import platform
import signal
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import replace
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import ddbench
from ddbench.errors import ConfigError
from runners import gaps, keeper
from runners.base import Answers, CellJob, CellOutcome, ModelFiles, NewPrompts, ServerSpec
from runners.devices import gpus_of
from runners.gpu_locks import names_of
from runners.hosts import agent
from runners.machine import version
from runners.measured_span import MeasuredSpan
from runners.passing_trouble import passing_trouble
from runners.prompts import Encoder, Tokenized, lengths, plain_texts, stop_ids
from runners.random_models import with_random
from runners.tables import Measured, write_tables
from runners.telemetry import Telemetry, open_source, wait_until_cool
from runners.telemetry.outcome import noted

if TYPE_CHECKING:
    from ddbench.adaptive import Adaptive
    from ddbench.cost import CostModel
    from ddbench.decoding import Generation, ModelPair
    from ddbench.records import Arm

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
ALIVE_S = 0.5  # between two signs of life
ENGINE_SOURCE = ("adaptive", "decoding", "drafters", "tree")  # packages of ddbench


class GpuBusy(Exception):
    """Another engine of ddbench holds the GPU: the text says which, and whose it is."""


class Connection(Protocol):
    """The process's end of its line to the parent."""

    def send(self, message: tuple[Any, ...]) -> None: ...

    def recv(self) -> Any: ...


def serve(connection: Connection, spec: ServerSpec, log: str | None) -> None:
    """Entry point of the process. ``log`` takes what is printed before the first cell; None: all goes to the output
    that it has, and cells get no log of their own."""
    os.setsid()  # its own group: the terminal's Ctrl-C is the parent's to handle
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    if log is not None:
        _redirect(Path(log))
    try:
        _take_gpu(spec)
        engine = _engine(spec)
    except ConfigError as error:
        connection.send(("refused", error.key, error.value, error.allowed))
        return
    except GpuBusy as busy:
        connection.send(("busy", str(busy)))
        return
    except Exception:  # noqa: BLE001  whatever it is, the parent must hear of it
        connection.send(("crashed", traceback.format_exc()))
        return
    connection.send(("ready", engine.facts()))
    while True:
        try:
            job: CellJob | NewPrompts | Answers = connection.recv()
        except EOFError:
            return
        if isinstance(job, CellJob):
            if log is not None:
                _redirect(job.folder / "server.log")
            connection.send(("done", engine.measure(job, connection)))
        elif isinstance(job, NewPrompts):
            connection.send(engine.ask(job))
        else:
            connection.send(("texts", plain_texts(engine.pair.tokenizer, job.token_ids)))


def _engine(spec: ServerSpec) -> Engine:
    """The built-in engine, or the published implementation in its place. Raises ConfigError as :class:`Engine`."""
    if spec.published is None:
        return Engine(spec)
    from runners.published.engine import PublishedEngine

    return PublishedEngine(spec)


class Engine:
    """A loaded model pair with its tokenised prompts.

    ``unmeasured``: columns of rounds.parquet that it does not know, which are null.

    Raises:
        ConfigError: a model that cannot be loaded or does not fit its config, or a prompt longer than the context.
    """

    unmeasured: tuple[str, ...] = ()

    def __init__(self, spec: ServerSpec) -> None:
        import torch

        from ddbench.decoding import KeptGraphs

        self.spec = spec
        self.graphs = KeptGraphs()  # from a cell's warm-up to its measurement
        if spec.threads is not None:
            torch.set_num_threads(spec.threads)
        with tempfile.TemporaryDirectory(prefix="ddbench-") as scratch:
            self.pair = self._loaded(Path(scratch))
        _check_against_config(spec.model, self.pair)
        tokenizer = self.pair.tokenizer
        self.stop_ids = frozenset() if spec.ignore_eos else stop_ids(tokenizer, self.pair.target.generation_config)
        limit = min(spec.context_length, self.pair.max_length or spec.context_length)
        self.encode = Encoder(tokenizer, spec.template, spec.thinking, limit, spec.max_new_tokens)
        self.prompts = [self.encode(prompt) for prompt in spec.prompts]
        self.warmup = [self.encode(prompt) for prompt in spec.warmup]
        self.cuda = self.pair.device.type == "cuda"
        self.gpu = torch.cuda.get_device_name(self.pair.device) if self.cuda else None
        self.build = source_hash(Path(ddbench.__file__).parent)

    def _loaded(self, scratch: Path) -> ModelPair:
        """The pair. ``scratch``: a folder that is gone when this returns."""
        made = with_random(self.spec.model, scratch, self.spec.context_length)
        pair: ModelPair = _load(replace(self.spec, model=made))
        return pair

    def _decode(self, job: CellJob, strategy: Any, requests: list[Any], **asked: Any) -> list[Generation]:
        """:func:`ddbench.decoding.decode` as it is; the place where another implementation decodes instead."""
        from ddbench.decoding import decode

        kept = self.graphs if job.cell.arm.flags.get("cuda_graphs") is True else False
        return decode(self.pair, strategy, requests, job.cell.batch_size, graphs=kept, **asked)

    def facts(self) -> dict[str, Any]:
        import torch

        return {
            "engine_threads": torch.get_num_threads(),
            "engine_gpu": self.gpu,
            "torch_cuda": torch.version.cuda,
            "engine_environment": {
                "python": platform.python_version(),
                **{name: version(name) for name in ("torch", "transformers")},
            },
            "prompt_tokens": lengths(self.prompts),
        }

    def ask(self, new: NewPrompts) -> tuple[Any, ...]:
        """Takes other prompts to be measured; returns the message for the parent."""
        try:
            prompts = [self.encode(prompt) for prompt in new.prompts]
            warmup = None if new.warmup is None else [self.encode(prompt) for prompt in new.warmup]
        except ConfigError as error:
            return "refused", error.key, error.value, error.allowed
        self.prompts = prompts
        self.warmup = self.warmup if warmup is None else warmup
        return "asked", {"prompt_tokens": lengths(self.prompts)}

    def measure(self, job: CellJob, connection: Connection) -> CellOutcome:
        """Warms up, measures and writes one cell; any exception of the engine becomes a failed cell with its reason."""
        try:
            return self._measure(job, connection)
        except Exception as error:  # noqa: BLE001  one cell's failure must not stop the others
            traceback.print_exc()
            first = (str(error) or "no message").strip().splitlines()[0]
            outcome = CellOutcome("failed", f"{type(error).__name__}: {first}", self.gpu)
            full = isinstance(error, OSError) and error.errno in FULL
            return replace(outcome, kind="disk") if full else outcome

    def _measure(self, job: CellJob, connection: Connection) -> CellOutcome:
        import torch

        from ddbench.decoding import Strategy

        arm = job.cell.arm
        strategy = Strategy(arm.strategy, arm.width, arm.depth, arm.nodes, arm.force_spine, arm.min_log_prob)
        adaptive = adaptive_of(arm, self.spec.cost, self.pair)
        self.graphs.release()
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.pair.device)
        gpus = [self.pair.device.index or 0] if self.cuda else []
        start = wait_until_cool([open_source(gpu) for gpu in gpus], self.spec.telemetry)
        batch = job.cell.batch_size
        warmup = [self.warmup[index % len(self.warmup)] for index in range(batch)]
        clock = time.perf_counter()
        ticking = Ticking(connection)
        warm = self._requests(job.cell, warmup, 0, job.warmup_tokens)
        repeats, new_tokens = range(job.cell.repeats), job.cell.max_new_tokens
        todo = [(item, repeat) for repeat in repeats for item in self.prompts]
        requests = [each for repeat in repeats for each in self._requests(job.cell, self.prompts, repeat, new_tokens)]
        self.graphs.room = max(len(each.token_ids) + each.max_new_tokens for each in (*warm, *requests))
        self._decode(job, strategy, warm, clock=ticking, adaptive=adaptive)
        warm_s = time.perf_counter() - clock
        _log(f"{strategy}: {batch} warm-up requests of {job.warmup_tokens} tokens in {warm_s:.3f} s")
        done = 0

        def finished(_: object) -> None:
            nonlocal done
            done += 1
            connection.send(("progress", done, len(requests)))

        clock = time.perf_counter()
        telemetry = Telemetry(gpus, self.spec.telemetry.interval_s)
        with MeasuredSpan(telemetry) as span:
            generations = self._decode(
                job, strategy, requests, clock=ticking, on_finish=finished, adaptive=adaptive, on_start=span
            )
        _log(f"{len(requests)} requests, {batch} in flight, in {time.perf_counter() - clock:.3f} s")
        measured: list[Measured] = [
            (item.prompt, repeat, generation) for (item, repeat), generation in zip(todo, generations, strict=True)
        ]
        peak = torch.cuda.max_memory_allocated(self.pair.device) / 2**30 if self.cuda else telemetry.peak_rss_gib
        found = self._gaps(measured, ticking) if gaps.wanted(self.spec, job.cell) else None
        write_tables(job.folder, job.cell, measured, telemetry.samples, found, self.unmeasured)
        status, reason = judge(arm.strategy, measured)
        no_graphs = span.note(job.folder, arm.flags.get("cuda_graphs") is True)
        return noted(CellOutcome(status, reason, self.gpu, peak, self.build), start, no_graphs)

    def _gaps(self, measured: list[Measured], ticking: Ticking) -> list[gaps.Gaps | None]:
        """``output_gaps`` of the first repeat. What goes wrong is said in the log: the cell has been measured."""
        from ddbench.decoding.gaps import top_two_gaps

        found: list[gaps.Gaps | None] = []
        clock = time.perf_counter()
        for _, repeat, generation in measured:
            wanted = repeat == 0 and generation.error is None
            ticking()
            try:
                ids = generation.request.token_ids, generation.output_token_ids
                found.append(top_two_gaps(self.pair, *ids) if wanted else None)
            except Exception:  # noqa: BLE001  no memory left for it, say
                traceback.print_exc()
                found.append(None)
        _log(f"gaps of {sum(each is not None for each in found)} outputs in {time.perf_counter() - clock:.3f} s")
        return found

    def _requests(self, cell: Any, items: list[Tokenized], repeat: int, new_tokens: int) -> list[Any]:
        from ddbench.decoding import Request, Sampling

        sampling = Sampling(cell.temperature, cell.top_p, cell.top_k, cell.seed + repeat)
        return [
            Request(item.prompt.id, item.token_ids, new_tokens, sampling, self.stop_ids, item.prompt.turn)
            for item in items
        ]


def adaptive_of(arm: Arm, cost: CostModel | None, pair: ModelPair) -> Adaptive | None:
    """What an arm's policy is given; None for an arm without one."""
    if arm.policy is None:
        return None
    from ddbench.adaptive import Adaptive, MeasuredCosts, policy_of, usual_candidates

    if cost is None:
        raise ConfigError("strategy.cost", None, f"a cost file, which {arm.policy} reckons with")
    assert pair.dflash is not None
    longest = pair.dflash.config.max_depth
    candidates = usual_candidates(arm.nodes or longest, arm.depth or longest)
    return Adaptive(policy_of(arm.policy), candidates, MeasuredCosts(cost))


class Ticking:
    """The clock that decoding reads in every round; the parent hears of it now and then, as a sign of progress."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._told_s = connection, time.perf_counter()

    def __call__(self) -> float:
        now_s = time.perf_counter()
        if now_s - self._told_s > ALIVE_S:
            self._told_s = now_s
            self._connection.send(("alive",))
        return now_s


def _take_gpu(spec: ServerSpec) -> None:
    """Lets torch see the GPUs of ``host.gpus`` alone, and locks the one that is used until this process ends.

    Raises:
        GpuBusy: another engine of ddbench holds it.
        ConfigError: there is no such GPU among those that may be used.
    """
    host = spec.host
    gpus = gpus_of(spec.device, 1, host)
    if host is not None and host.gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, host.gpus))
    if host is not None and host.share_gpus:
        return
    for name in names_of(gpus, agent.facts()["gpus"]) if gpus else ():
        problem = keeper.lock(name)
        if problem is not None:
            raise GpuBusy(problem)


def judge(strategy: str, measured: list[Measured]) -> tuple[Any, str | None]:
    """Status of a measured cell: failed if a request failed, or if a speculative arm never speculated."""
    errors = [generation.error for _, _, generation in measured if generation.error]
    if errors:
        return "failed", f"{len(errors)} of {len(measured)} requests failed: {errors[0]}"
    longer = [generation for _, _, generation in measured if len(generation.output_token_ids) > 1]
    if strategy != "autoregressive" and longer and not any(generation.rounds for generation in longer):
        return "failed", "no verify round was recorded: speculation was not active"
    return "ok", None


def source_hash(root: Path) -> str:
    """Hash of the source, in the package ``ddbench`` at ``root``, that decides how the reference engine computes.

    Two builds of one version differ in it.
    """
    files = sorted(path for part in ENGINE_SOURCE for path in (root / part).rglob("*.py"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _load(spec: ServerSpec) -> Any:
    from ddbench.decoding import load_pair

    model = spec.model
    try:
        return load_pair(
            model.target,
            model.dflash,
            model.eagle,
            device=spec.device,
            dtype=spec.dtype,
            revision=model.target_revision,
            dflash_revision=model.dflash_revision,
            eagle_revision=model.eagle_revision,
            trust_remote_code=model.trust_remote_code,
        )
    except ConfigError as error:
        trouble = passing_trouble(error)
        if trouble is not None:
            raise trouble from None
        keys = {name: f"model.{name}.source" for name in ("target", "dflash", "eagle")}
        keys |= {name: f"engine.{name}" for name in ("device", "dtype")}
        raise ConfigError(keys.get(error.key, error.key), error.value, error.allowed) from error


def _check_against_config(model: ModelFiles, pair: Any) -> None:
    vocab = pair.target.config.get_text_config().vocab_size
    if model.vocab_size is not None and model.vocab_size != vocab:
        raise ConfigError("model.target.vocab_size", model.vocab_size, f"{vocab}, as the checkpoint says")
    if pair.dflash is None:
        return
    for key in ("block_size", "mask_token_id"):
        said, found = getattr(model, key), getattr(pair.dflash.config, key)
        if said is not None and said != found:
            raise ConfigError(f"model.dflash.{key}", said, f"{found}, as the checkpoint says")


def _log(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _redirect(log: Path) -> None:
    """Everything this process prints from now on goes to ``log``."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _die_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)

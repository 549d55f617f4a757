"""The stages of the training programme. Each reads what earlier ones left in the work folder, so a stage can be
repeated alone."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ddbench.drafters.dflash import DFlashDrafter
from experiments.train_tiny import corpus, data, dflash, distil, eagle3, generate, target, tokenizer
from experiments.train_tiny.card import as_text, evidence, write_card
from experiments.train_tiny.config import STAGES, DFlashTrainConfig, TrainConfig
from experiments.train_tiny.corpus import Unit
from experiments.train_tiny.data import Prompt
from experiments.train_tiny.generate import Continuations
from experiments.train_tiny.validate import chain_acceptance

log = logging.getLogger(__name__)
TARGET_STAGES = ("target", "unloop", "first_drafter", "distil")


class Workshop:
    """The folders, device and notes that stages share."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.work, self.output = Path(config.work), Path(config.output)
        self.work.mkdir(parents=True, exist_ok=True)
        self.output.mkdir(parents=True, exist_ok=True)
        torch.set_float32_matmul_precision("high")

    def run(self) -> None:
        stages: dict[str, Callable[[], dict[str, Any]]] = {
            "corpus": self.corpus,
            "target": self.target,
            "unloop": self.unloop,
            "first_drafter": self.first_drafter,
            "distil": self.distil,
            "generate": self.generate,
            "dflash": self.dflash,
            "eagle3": self.eagle3,
            "evaluate": self.evaluate,
            "card": self.card,
        }
        for name in self.stages_to_run():
            began = time.perf_counter()
            log.info("stage %s", name)
            notes = stages[name]() | {
                "stage_seconds": round(time.perf_counter() - began, 1),
                "hardware": hardware(self.config.device),
            }
            (self.work / f"{name}.json").write_text(json.dumps(notes, indent=1))
            log.info("stage %s took %.1f s", name, notes["stage_seconds"])

    def stages_to_run(self) -> list[str]:
        """Those asked for; for a given target the ones that would train a target are left out."""
        given = self.config.target.path is not None
        return [name for name in self.config.stages if not (given and name in TARGET_STAGES)]

    # -- stages ------------------------------------------------------------------------------------------------

    def corpus(self) -> dict[str, Any]:
        settings = self.config.corpus
        sources = corpus.installed_sources(settings.only)
        units = corpus.read_units(sources, settings.max_units_per_source, self.config.workers)
        held_out = set(settings.held_out)
        training = [unit for unit in units if unit.source not in held_out]
        held = [unit for unit in units if unit.source in held_out]
        bpe = self._tokenizer_for(training)
        end_id = self.end_id()
        np.save(self.work / "stream.npy", data.token_stream(bpe, training, self.config.seed, end_id))
        np.save(self.work / "held_out.npy", data.token_stream(bpe, held, self.config.seed, end_id))
        used = {
            name: _totals([unit for unit in units if unit.source == name]) for name in {unit.source for unit in units}
        }
        evaluation = data.write_prompts(
            bpe, held, {s.name: s for s in sources}, settings, self.config.seed, self.output
        )
        (self.work / "evaluation_prompts.json").write_text(json.dumps([asdict(prompt) for prompt in evaluation]))
        return {
            "sources": [
                {
                    "name": s.name,
                    "version": s.version,
                    "licence": s.licence,
                    "held_out": s.name in held_out,
                    **used[s.name],
                }
                for s in sources
                if s.name in used
            ],
            "training": _totals(training) | {"tokens": int(np.load(self.work / "stream.npy", mmap_mode="r").size)},
            "held_out": _totals(held) | {"tokens": int(np.load(self.work / "held_out.npy", mmap_mode="r").size)},
        }

    def target(self) -> dict[str, Any]:
        settings, device = self.config.target, self.config.device
        torch.manual_seed(self.config.seed)
        bpe = Tokenizer.from_file(str(self.output / "target" / "tokenizer.json"))
        model = target.new_target(settings, bpe.get_vocab_size(), self.end_id(), bpe.token_to_id(tokenizer.PAD)).to(
            device
        )
        history = target.train_target(model, self.stream("stream"), self.stream("held_out"), settings, self.config.seed)
        self._save_target(model)
        return {"parameters": sum(p.numel() for p in model.parameters()), "history": history}

    def unloop(self) -> dict[str, Any]:
        settings, rng = self.config.unloop, self._generator(1)
        model, stream = self.load_target(torch.float32), self.stream("stream")
        length = self.config.generate.prompt_lengths[1]
        starts = self._starts("stream")[length]
        shares = []
        for turn in range(settings.rounds + 1):
            prompts = generate.random_prompts(stream, starts, settings.sequences, length, rng)
            with torch.autocast(self.config.device, torch.bfloat16):
                found = generate.continued(model, prompts, self.config.generate.new_tokens, self._end_ids())
            if turn == settings.rounds:
                shares.append(target.looping_share(found))
                break
            shares.append(
                target.unloop(model, found, stream, settings, self.config.target.row_tokens, self.config.seed + turn)
            )
        held_out = target.held_out_loss(model, self.stream("held_out"), self.config.target.row_tokens)
        self._save_target(model)
        return {"looping_share_by_round": shares, "held_out_loss": held_out}

    def distil(self) -> dict[str, Any]:
        settings, rng = self.config.distil, self._generator(3)
        model, stream = self.load_target(torch.float32), self.stream("stream")
        drafter = self._drafter(model)
        distiller = distil.Distiller.of(model, drafter, settings, self.config.dflash, self.end_id())
        starts, held_starts = self._starts("stream"), self._starts("held_out")
        new_tokens, lengths = self.config.generate.new_tokens, self.config.generate.prompt_lengths
        temperatures = torch.full((settings.candidates,), settings.temperature, device=stream.device)
        temperatures[0] = 0.0
        history: list[dict[str, Any]] = []
        for turn in range(settings.rounds):
            parts = []
            for length in lengths:
                prompts = generate.random_prompts(stream, starts[length], settings.prompts // len(lengths), length, rng)
                repeated, wanted = prompts.repeat_interleave(settings.candidates, 0), temperatures.repeat(len(prompts))
                with torch.autocast(self.config.device, torch.bfloat16):
                    parts.append(generate.continued(model, repeated, new_tokens, self._end_ids(), wanted, rng))
            chosen = distiller.choose(generate.joined(parts), rng)
            notes: dict[str, Any] = distiller.tune(chosen, stream, self.config.target.row_tokens, rng)
            prompts = generate.random_prompts(self.stream("held_out"), held_starts[lengths[2]], 256, lengths[2], rng)
            with torch.autocast(self.config.device, torch.bfloat16):
                found = generate.continued(model, prompts, new_tokens, self._end_ids())
            kept = target.without_loops(found)
            notes |= {
                "round": turn,
                "held_out_loss": target.held_out_loss(model, self.stream("held_out"), self.config.target.row_tokens),
                "held_out_looping_share": target.looping_share(found),
                "held_out_mean_tokens": (found.ends - found.prompt_tokens).float().mean().item(),
                "held_out_distinct_ratio": target.mean_distinct_ratio(found),
                "held_out_emitted_per_round": chain_acceptance(model, drafter, kept),
            }
            log.info("distil %s", notes)
            history.append(notes)
            self._save_target(model)
            model.float()
            self._save_dflash(model, drafter)
        return {"history": history}

    def first_drafter(self) -> dict[str, Any]:
        first = self.config.first_drafter
        settings = replace(self.config.dflash, steps=first.steps, learning_rate=first.learning_rate)
        return self._generate(first.sequences) | self._train_dflash(settings)

    def generate(self) -> dict[str, Any]:
        return self._generate(self.config.generate.sequences)

    def dflash(self) -> dict[str, Any]:
        return self._train_dflash(self.config.dflash)

    def eagle3(self) -> dict[str, Any]:
        model = self.load_target(torch.float32)
        drafter, as_json, history = eagle3.train_eagle3(
            model, self._continuations("continuations"), self.config.eagle3, self.config.seed
        )
        weights = {name: value for name, value in drafter.state_dict().items() if not name.startswith("rotary.")}
        if drafter.d2t is not None:
            draft_ids = torch.arange(len(drafter.d2t), device=drafter.d2t.device) + drafter.d2t
            weights["t2d"] = torch.zeros(model.config.vocab_size, dtype=torch.bool, device=draft_ids.device).index_fill(
                0, draft_ids, True
            )
        self._save_drafter("eagle3", weights, as_json)
        return {"parameters": sum(p.numel() for p in drafter.parameters()), "history": history}

    def evaluate(self) -> dict[str, Any]:
        from experiments.train_tiny.evaluate import evaluate

        found = [Prompt(**entry) for entry in json.loads((self.work / "evaluation_prompts.json").read_text())]
        prompts = [Prompt(p.source, p.category, p.text, tuple(p.token_ids)) for p in found]
        return evaluate(
            self.target_folder(), self.output, prompts, self.config.device, frozenset(self._end_ids().tolist())
        )

    def card(self) -> dict[str, Any]:
        notes = {name: json.loads(path.read_text()) for name in STAGES if (path := self.work / f"{name}.json").exists()}
        (self.output / "README.md").write_text(write_card(self.config, notes, self.config.remark))
        (self.work / "evidence.json").write_text(as_text(evidence(self.config, notes, self.config.remark)))
        return {}

    # -- pieces ------------------------------------------------------------------------------------------------

    def _generate(self, sequences: int) -> dict[str, Any]:
        settings, rng = self.config.generate, self._generator(2)
        model, stream = self.load_target(torch.bfloat16), self.stream("stream")
        parts = []
        starts = self._starts("stream")
        for index in range(sequences // settings.batch):
            length = settings.prompt_lengths[index % len(settings.prompt_lengths)]
            prompts = generate.random_prompts(stream, starts[length], settings.batch, length, rng)
            found = generate.continued(model, prompts, settings.new_tokens, self._end_ids())
            parts.append(Continuations(found.tokens.int(), found.prompt_tokens, found.ends))
        everything = generate.joined(parts)
        torch.save(asdict(everything), self.work / "continuations.pt")
        held, length = self.stream("held_out"), settings.prompt_lengths[len(settings.prompt_lengths) // 2]
        prompts = generate.random_prompts(held, self._starts("held_out")[length], settings.validation, length, rng)
        found = generate.continued(model, prompts, settings.new_tokens, self._end_ids())
        kept = target.without_loops(found)
        torch.save(asdict(kept), self.work / "validation.pt")
        return {
            "validation_sequences": len(kept.tokens),
            "held_out_looping_share": target.looping_share(found),
            "sequences": len(everything.tokens),
            "generated_tokens": int((everything.ends - everything.prompt_tokens).sum()),
            "looping_share": target.looping_share(parts[0]),
        }

    def _train_dflash(self, settings: DFlashTrainConfig) -> dict[str, Any]:
        model = self.load_target(torch.float32)
        drafter = self._drafter(model)
        history = dflash.train_dflash(
            model,
            drafter,
            self._continuations("continuations"),
            self._continuations("validation"),
            settings,
            self.config.seed,
        )
        self._save_dflash(model, drafter)
        return {"parameters": sum(p.numel() for p in drafter.parameters()), "history": history}

    def stream(self, name: str) -> Tensor:
        return torch.from_numpy(np.load(self.work / f"{name}.npy").astype(np.int32)).to(self.config.device)

    def target_folder(self) -> str:
        return self.config.target.path or str(self.output / "target")

    def load_target(self, dtype: torch.dtype) -> PreTrainedModel:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(self.target_folder(), dtype=dtype)
        return model.to(self.config.device)

    def _drafter(self, model: PreTrainedModel) -> DFlashDrafter:
        """The drafter of an earlier stage, or a new one."""
        drafter = dflash.new_dflash(model, self.config.dflash, self._mask_id(), self.config.seed)
        earlier = self.output / "dflash" / "model.safetensors"
        if earlier.exists():
            drafter.load_state_dict(load_file(earlier, device=self.config.device), strict=False)
        return drafter

    def _save_dflash(self, model: PreTrainedModel, drafter: DFlashDrafter) -> None:
        weights = {name: value for name, value in drafter.state_dict().items() if not name.startswith("rotary.")}
        self._save_drafter("dflash", weights, dflash.dflash_json(model, self.config.dflash, self._mask_id()))

    def end_id(self) -> int:
        if self.config.target.path is None:
            return 0  # the first special token of our own tokenizer
        end_id = AutoTokenizer.from_pretrained(self.config.target.path).eos_token_id
        return int(end_id)

    def _end_ids(self) -> Tensor:
        return torch.tensor([self.end_id()], device=self.config.device)

    def _mask_id(self) -> int:
        """Our own mask token; for another target the last row of its embedding, which real text does not use."""
        if self.config.target.path is None:
            return int(AutoTokenizer.from_pretrained(self.target_folder()).mask_token_id)
        return int(self.load_target(torch.float32).config.vocab_size) - 1

    def _tokenizer_for(self, training: list[Unit]) -> Tokenizer:
        """A new BPE, or the given target's own tokenizer."""
        if self.config.target.path is not None:
            given: Tokenizer = AutoTokenizer.from_pretrained(self.config.target.path).backend_tokenizer
            return given
        earlier = self.output / "target" / "tokenizer.json"
        if earlier.exists():  # a model trained on other merges would be lost
            return Tokenizer.from_file(str(earlier))
        settings, size, texts = self.config.corpus, 0, []
        for unit in training[:: max(1, sum(len(u.text) for u in training) // settings.tokenizer_chars)]:
            size += len(unit.text)
            texts.append(unit.text)
            if size > settings.tokenizer_chars:
                break
        bpe = tokenizer.train_tokenizer(texts, settings.vocab_size)
        tokenizer.save_tokenizer(bpe, self.output / "target", self.config.target.context)
        return bpe

    def _starts(self, name: str) -> dict[int, Tensor]:
        """For every prompt length, where units longer than it begin in the stream."""
        stream = np.load(self.work / f"{name}.npy")
        lengths = self.config.generate.prompt_lengths
        return {
            n: torch.from_numpy(data.unit_starts(stream, self.end_id(), n + 1)).to(self.config.device) for n in lengths
        }

    def _continuations(self, name: str) -> Continuations:
        path = self.work / f"{name}.pt"
        return Continuations(**torch.load(path, map_location=self.config.device, weights_only=True))

    def _generator(self, offset: int) -> torch.Generator:
        return torch.Generator(self.config.device).manual_seed(self.config.seed + offset)

    def _save_target(self, model: PreTrainedModel) -> None:
        """In bfloat16, the dtype it is shipped in: everything after trains against the rounded weights."""
        model.to(torch.bfloat16).save_pretrained(self.output / "target")

    def _save_drafter(self, name: str, weights: dict[str, Tensor], as_json: dict[str, Any]) -> None:
        folder = self.output / name
        folder.mkdir(parents=True, exist_ok=True)
        stored = {
            key: (value.to(torch.bfloat16) if value.is_floating_point() else value).contiguous().cpu()
            for key, value in weights.items()
        }
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(as_json, indent=2) + "\n")


def _totals(units: list[Unit]) -> dict[str, Any]:
    by_category = {name: sum(unit.category == name for unit in units) for name in corpus.CATEGORIES}
    return {"units": len(units), "characters": sum(len(unit.text) for unit in units), "by_category": by_category}


def hardware(device: str) -> str:
    if device.startswith("cuda") and torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"

"""The stages of the training programme. Each reads what earlier ones left in the work folder, so a stage can be
repeated alone, or be named twice: its notes then hold those of its earlier passes, in order, under ``earlier``."""

from __future__ import annotations

import copy
import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from ddbench.errors import ConfigError
from experiments.train_tiny import bar, corpus, data, dflash, distil, eagle3, generate, target, tokenizer
from experiments.train_tiny import teach as teaching
from experiments.train_tiny.card import as_text, evidence, write_card
from experiments.train_tiny.config import STAGES, DFlashTrainConfig
from experiments.train_tiny.corpus import Unit
from experiments.train_tiny.data import Prompt
from experiments.train_tiny.generate import Continuations
from experiments.train_tiny.shop import Shop, hardware
from experiments.train_tiny.validate import chain_acceptance
from experiments.workloads import asset_path

log = logging.getLogger(__name__)
TARGET_STAGES = ("target", "unloop", "first_drafter", "lessons", "teach", "distil")


class Workshop(Shop):
    """The stages, by the names that ``train_tiny.stages`` gives them."""

    def run(self) -> None:
        stages: dict[str, Callable[[], dict[str, Any]]] = {
            "corpus": self.corpus,
            "target": self.target,
            "unloop": self.unloop,
            "first_drafter": self.first_drafter,
            "lessons": self.lessons,
            "teach": self.teach,
            "distil": self.distil,
            "generate": self.generate,
            "dflash": self.dflash,
            "eagle3": self.eagle3,
            "evaluate": self.evaluate,
            "card": self.card,
            "ship": self.ship,
        }
        passes: dict[str, list[dict[str, Any]]] = {}
        for name in self.stages_to_run():
            began = time.perf_counter()
            log.info("stage %s", name)
            notes = stages[name]() | {
                "stage_seconds": round(time.perf_counter() - began, 1),
                "hardware": hardware(self.config.device),
            }
            earlier = passes.setdefault(name, [])
            kept = notes | {"earlier": earlier} if earlier else notes
            (self.work / f"{name}.json").write_text(json.dumps(kept, indent=1))
            earlier.append(notes)
            log.info("stage %s took %.1f s", name, notes["stage_seconds"])

    def stages_to_run(self) -> list[str]:
        """Those asked for; for a given target the ones that would train a target are left out."""
        given = self.config.target.path is not None
        return [name for name in self.config.stages if not (given and name in TARGET_STAGES)]

    # -- stages ------------------------------------------------------------------------------------------------

    def corpus(self) -> dict[str, Any]:
        settings = self.config.corpus
        sources = corpus.installed_sources(settings.only)
        log.info("corpus: %d sources with %d files", len(sources), sum(len(source.files) for source in sources))
        units = corpus.read_units(sources, settings.max_units_per_source, self.config.workers)
        log.info("corpus: %d units", len(units))
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

    def lessons(self) -> dict[str, Any]:
        """Greedy text of the teacher, and none of the target's own."""
        model = self._load(self._teacher().target, self.writing_dtype)
        return self._generate(model, self._teacher().sequences, "lessons")

    def teach(self) -> dict[str, Any]:
        settings, device = self._teacher(), self.config.device
        torch.manual_seed(self.config.seed)
        teacher = self._load(settings.target, torch.float32).requires_grad_(False)
        model, drafter = self._pupils(teacher)
        room = teaching.Classroom(
            *(model, drafter, teacher, target.without_loops(self._continuations("lessons"))),
            *(self._continuations("lessons_validation"), self.stream("stream")),
        )

        def keep() -> None:
            self._save_target(copy.deepcopy(model))
            self._save_dflash(model, drafter)

        history = teaching.teach(room, settings, self.config.dflash, self.config.seed, keep)
        held_out = target.held_out_loss(model, self.stream("held_out").to(device), self.config.target.row_tokens)
        return {
            "parameters": sum(p.numel() for p in model.parameters()),
            "teacher_parameters": sum(p.numel() for p in teacher.parameters()),
            "held_out_loss": held_out,
            "history": history,
        }

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
                log.info("distil: round %d, prompts of %d tokens", turn, length)
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
        model = self.load_target(self.writing_dtype)
        return self._generate(model, first.sequences, "continuations") | self._train_dflash(settings)

    def generate(self) -> dict[str, Any]:
        return self._generate(self.load_target(self.writing_dtype), self.config.generate.sequences, "continuations")

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

    def ship(self) -> dict[str, Any]:
        if self.config.ship_to is None:
            raise ConfigError("train_tiny.ship_to", None, "a folder, which the stage ship fills")
        evaluation = json.loads((self.work / "evaluate.json").read_text())
        return bar.ship(self.output, asset_path(self.config.ship_to), self.config.bar, evaluation)

    # -- pieces ------------------------------------------------------------------------------------------------

    def _generate(self, model: PreTrainedModel, sequences: int, name: str) -> dict[str, Any]:
        """Greedy continuations of training prompts to ``name.pt``, of held-out ones to the validation's file."""
        settings, rng = self.config.generate, self._generator(2)
        stream, began = self.stream("stream"), time.perf_counter()
        parts: list[Continuations] = []
        starts = self._starts("stream")
        for index in range(sequences // settings.batch):
            passed = time.perf_counter() - began
            if parts and settings.seconds is not None and passed > settings.seconds:
                break
            log.info("%s: %d of %d batches, %.1f s", name, index, sequences // settings.batch, passed)
            length = settings.prompt_lengths[index % len(settings.prompt_lengths)]
            prompts = generate.random_prompts(stream, starts[length], settings.batch, length, rng)
            found = generate.continued(model, prompts, settings.new_tokens, self._end_ids())
            parts.append(Continuations(found.tokens.int(), found.prompt_tokens, found.ends))
        everything = generate.joined(parts)
        torch.save(asdict(everything), self.work / f"{name}.pt")
        held, length = self.stream("held_out"), settings.prompt_lengths[len(settings.prompt_lengths) // 2]
        prompts = generate.random_prompts(held, self._starts("held_out")[length], settings.validation, length, rng)
        found = generate.continued(model, prompts, settings.new_tokens, self._end_ids())
        kept = target.without_loops(found)
        validation = "validation" if name == "continuations" else f"{name}_validation"
        torch.save(asdict(kept), self.work / f"{validation}.pt")
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


def _totals(units: list[Unit]) -> dict[str, Any]:
    by_category = {name: sum(unit.category == name for unit in units) for name in corpus.CATEGORIES}
    return {"units": len(units), "characters": sum(len(unit.text) for unit in units), "by_category": by_category}

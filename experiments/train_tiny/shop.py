"""What the stages share: folders, the device, and how models and texts are read and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ddbench.drafters import load_dflash
from ddbench.drafters.dflash import DFlashDrafter
from ddbench.errors import ConfigError
from experiments.train_tiny import data, dflash, inherit, target, tokenizer
from experiments.train_tiny.config import TeacherConfig, TrainConfig
from experiments.train_tiny.corpus import Unit
from experiments.train_tiny.generate import Continuations
from experiments.workloads import asset_path


class Shop:
    """The folders and the device of one training."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.work, self.output = Path(config.work), Path(config.output)
        self.work.mkdir(parents=True, exist_ok=True)
        self.output.mkdir(parents=True, exist_ok=True)
        torch.set_float32_matmul_precision("high")

    @property
    def writing_dtype(self) -> torch.dtype:
        """Of a target that writes text: bfloat16 is slow on most CPUs."""
        return torch.bfloat16 if self.config.device.startswith("cuda") else torch.float32

    def stream(self, name: str) -> Tensor:
        return torch.from_numpy(np.load(self.work / f"{name}.npy").astype(np.int32)).to(self.config.device)

    def target_folder(self) -> str:
        return self.config.target.path or str(self.output / "target")

    def load_target(self, dtype: torch.dtype) -> PreTrainedModel:
        return self._load(self.target_folder(), dtype)

    def _load(self, folder: str, dtype: torch.dtype) -> PreTrainedModel:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(str(asset_path(folder)), dtype=dtype)
        return model.to(self.config.device)

    def _teacher(self) -> TeacherConfig:
        if self.config.teacher is None:
            raise ConfigError("train_tiny.teacher", None, "a finished pair, which the stages lessons and teach need")
        if self.config.target.hybrid is None:
            raise ConfigError("train_tiny.target.hybrid", None, "a hybrid target: no other learns from a teacher")
        return self.config.teacher

    def _pupils(self, teacher: PreTrainedModel) -> tuple[PreTrainedModel, DFlashDrafter]:
        """The target and the drafter as an earlier run left them, or with their first weights from the teacher's."""
        if (self.output / "target" / "model.safetensors").exists():
            model = self.load_target(torch.float32)
            return model, self._drafter(model)
        model = target.new_target(
            self.config.target, teacher.config.vocab_size, self.end_id(), int(teacher.config.pad_token_id)
        ).to(self.config.device)
        inherit.inherit_target(model, teacher, self._teacher().layers)
        drafter = dflash.new_dflash(model, self.config.dflash, self._mask_id(), self.config.seed)
        other = load_dflash(asset_path(self._teacher().dflash), target_config=teacher.config)
        inherit.inherit_drafter(drafter, other.to(self.config.device))
        return model, drafter

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
        if self.config.teacher is not None:  # the teacher's distributions are over its own tokens
            given = Tokenizer.from_file(str(asset_path(self.config.teacher.target) / "tokenizer.json"))
            tokenizer.save_tokenizer(given, self.output / "target", self.config.target.context)
            return given
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


def hardware(device: str) -> str:
    if device.startswith("cuda") and torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"

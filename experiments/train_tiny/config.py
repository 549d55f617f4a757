"""Settings of the training programme, as frozen dataclasses; defaults in ``conf/experiment/train_tiny.yaml``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CorpusConfig:
    only: list[str] | None  # distributions to read; None reads every permissively licensed one
    held_out: list[str]  # distributions kept out of training, for the prompts
    max_units_per_source: int
    vocab_size: int  # tokens of the byte-level BPE, the special ones included; a multiple of 64
    tokenizer_chars: int  # characters of the corpus the BPE is trained on
    prompts_per_category: int  # shipped, measured
    warmup_per_category: int  # shipped, never measured
    evaluation_prompts: int  # held-out prompts of the quality bar


@dataclass(frozen=True)
class HybridConfig:
    """A target of the Qwen3.5 text architecture: layers of gated delta net, and some of full attention between them."""

    interval: int  # every interval-th layer has full attention
    key_heads: int
    value_heads: int  # a multiple of key_heads
    head_dim: int  # of keys and values of the delta net
    conv_kernel: int  # tokens that its short convolution sees
    rotary_share: float  # of the full attention's head_dim


@dataclass(frozen=True)
class TargetConfig:
    path: str | None  # an existing Hugging Face target: no target is trained, only drafters
    hybrid: HybridConfig | None  # null: the Qwen3 architecture, full attention in every layer
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int  # max_position_embeddings, tokens
    rope_theta: float
    row_tokens: int  # tokens of one training row
    batch: int  # rows a step
    steps: int
    learning_rate: float
    weight_decay: float
    compile: bool


@dataclass(frozen=True)
class TeacherConfig:
    """A finished pair that the target and its drafter take their first weights, tokenizer and lessons from.

    See ``inherit.py`` and ``teach.py``.
    """

    target: str  # folder, or asset://...
    dflash: str  # folder of its drafter, or asset://...
    layers: list[int]  # the teacher's layer that each layer of the target starts from
    taps: list[int]  # the teacher's taps, in the order of dflash.taps, whose features the target's shall resemble
    sequences: int  # greedy continuations of the teacher
    steps: int
    seconds: float | None  # the training ends after so long, if the steps have not ended before; null: never
    batch: int  # continuations a step
    real_rows: int  # rows of real text a step
    learning_rate: float
    drafter_learning_rate: float
    feature_weight: float
    draft_weight: float


@dataclass(frozen=True)
class UnloopConfig:
    """Unlikelihood fine-tuning of the target on its own greedy loops (Welleck et al. 2020, sequence level)."""

    rounds: int
    sequences: int  # greedy continuations a round
    steps: int  # optimiser steps a round
    batch: int  # looping continuations a step
    learning_rate: float
    weight: float  # of the unlikelihood term beside the language-model loss


@dataclass(frozen=True)
class FirstDrafterConfig:
    """A drafter for the target as it is before distillation, whose judgement the first round needs."""

    sequences: int  # greedy continuations it is trained on
    steps: int
    learning_rate: float


@dataclass(frozen=True)
class DistilConfig:
    """Self-distillation towards draftable text; see ``distil.py``."""

    rounds: int
    prompts: int  # a round
    candidates: int  # continuations a prompt: one greedy, the rest sampled
    temperature: float  # of the sampled ones
    max_repeated: float  # largest share of repeated 8-grams a chosen text may have
    steps: int  # optimiser steps a round
    seconds: float | None  # of a round's training at most; null: no limit
    learning_rate: float  # of the target
    draft_weight: float  # weight of the drafter's loss
    real_weight: float  # weight of the language-model loss on real text
    real_rows: int  # rows of real text a step


@dataclass(frozen=True)
class GenerateConfig:
    sequences: int  # greedy continuations the drafters are trained on
    seconds: float | None  # no batch begins later than this; null: no limit
    validation: int  # greedy continuations of held-out text, to watch the chain's acceptance
    batch: int
    prompt_lengths: list[int]  # tokens, one of them a batch
    new_tokens: int


@dataclass(frozen=True)
class DFlashTrainConfig:
    layers: int
    intermediate_size: int
    block_size: int
    taps: list[int]
    anchors: int  # blocks a sequence
    batch: int
    steps: int
    seconds: float | None  # of training at most; null: no limit
    learning_rate: float
    compile: bool
    gamma: float  # loss weight of offset k is exp(-(k - 1) / gamma), DFlash paper §4.2


@dataclass(frozen=True)
class Eagle3TrainConfig:
    intermediate_size: int
    draft_vocab_size: int
    taps: list[int]
    unroll: int  # drafter steps fed with the drafter's own hidden rows (EAGLE-3 paper §3.2, training-time test)
    batch: int
    steps: int
    learning_rate: float


@dataclass(frozen=True)
class BarConfig:
    """What a pair must reach on the held-out prompts of the stage ``evaluate`` before the stage ``ship`` takes it."""

    chain: float  # tokens that a round of the DFlash chain emits
    tree: float  # the same of DDTree with 64 nodes, over the chain's
    eagle: float  # the same of the EAGLE-3 chain, where there is such a drafter
    loop_share: float  # of the prompts whose greedy text loops, at most
    lossless_share: float  # of the prompts, for every strategy
    max_mib: float  # of all files


@dataclass(frozen=True)
class TrainConfig:
    output: str  # folder of the finished models
    work: str  # folder of intermediate files
    remark: str  # for the model card: how the stages were run
    stages: list[str]
    seed: int
    device: str
    workers: int
    corpus: CorpusConfig
    target: TargetConfig
    teacher: TeacherConfig | None
    unloop: UnloopConfig
    first_drafter: FirstDrafterConfig
    distil: DistilConfig
    generate: GenerateConfig
    dflash: DFlashTrainConfig
    eagle3: Eagle3TrainConfig
    bar: BarConfig
    ship_to: str | None  # folder, or asset://..., that the stage ship fills


STAGES = (
    *("corpus", "target", "unloop", "first_drafter", "lessons", "teach", "distil"),
    *("generate", "dflash", "eagle3", "evaluate", "card", "ship"),
)

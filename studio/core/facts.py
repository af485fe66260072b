"""What is known before a run: the machine, the model, the data, and the choices made from them with their reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from studio.core.text import Text


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Yes or no, with the reason."""

    ok: bool
    reason: Text | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One accelerator as its driver describes it."""

    name: str
    vram_bytes: int
    capability: tuple[int, int]
    """(major, minor) compute capability of an NVIDIA GPU; (0, 0) elsewhere."""
    vendor: str = "nvidia"


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineFacts:
    """Raw facts of the machine; conclusions are drawn in host/plan.py."""

    system: str
    """`Linux`, `Windows` or `Darwin`."""
    wsl: bool
    python: str
    cores: int
    ram_bytes: int
    packages: Mapping[str, str]
    """Distribution name -> installed version, of the packages that a run depends on."""
    gpus: tuple[Gpu, ...] = ()
    driver_cuda: tuple[int, int] = (0, 0)
    """Newest CUDA that the NVIDIA driver supports; (0, 0) without one."""
    torch_cuda: str = ""
    """CUDA version that torch was built for; "" for a CPU build."""
    triton_level: str = "absent"
    """absent < installed < importable < compiles < launches < right; only the last enables Triton's kernels."""
    triton_error: str = ""
    bitsandbytes_error: str = ""
    """Why bitsandbytes cannot be used; "" when it can."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """What a model folder is, read without loading its weights."""

    source: str
    name: str
    """Hub id or folder name: never a local path."""
    folder: str
    """Local folder that holds the files; "" for a hub source that is not downloaded yet."""
    architecture: str
    """Class name in config.json, such as `LlamaForCausalLM`."""
    family: str
    """model_type in config.json, such as `llama`."""
    parameters: int
    weight_bytes: int
    dtype: str
    quantization: str
    """How the stored weights are quantised: none, nf4, int8 or another method's name."""
    hidden_size: int
    layers: int
    vocabulary: int
    max_positions: int
    has_chat_template: bool
    trainable: Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFacts:
    """What a data set is, after every row was looked at."""

    source: str
    format: str
    reason: Text
    mapping: Mapping[str, str]
    columns: tuple[str, ...]
    rows_read: int
    rows_used: int
    rows_refused: int
    content_hash: str
    problems: tuple[Text, ...] = ()
    tokens: int = 0
    """Tokens of the rows used, after cutting; 0 when nothing was tokenised yet."""
    trained_tokens: int = 0
    rows_cut: int = 0
    rows_dropped: Mapping[str, int] = field(default_factory=dict)
    """Rule -> rows, for rows that a named rule left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A decision and its reason."""

    value: Any
    reason: Text


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """Something that the person may do for a better run."""

    title: Text
    why: Text
    command: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendPlan:
    """What a run will really use, each choice with its reason."""

    device: Choice
    """`cuda:0`, `cpu`, ..."""
    dtype: Choice
    """`bf16`, `fp16` or `fp32`: the dtype of the arithmetic."""
    attention: Choice
    quantization: Choice
    optimizer: Choice
    checkpointing: Choice
    """Whether activations are recomputed in the backward pass."""
    kernels: Mapping[str, Choice]
    """Op -> `triton` or `reference`."""
    offers: tuple[Offer, ...] = ()

"""What is known before a run: the machine, the model, the data, and the choices made from them with their reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from studio.core.i18n import Text
from studio.core.layer_facts import AttentionFacts, BlockFacts
from studio.core.memory_policy import MemoryPolicy


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
    """nvidia, amd, intel or apple"""
    architecture: str = ""
    """AMD's name of the chip, such as `gfx1100`; "" elsewhere."""
    display: bool | None = None
    """Whether a display hangs on it; None when the driver does not tell."""
    free_bytes: int = 0
    """What other programs leave of its memory just now (machine/cards.py); 0 when nobody looked."""
    cap_bytes: int = 0
    """What the run that has begun on it may take, with what lies beside torch; 0 before one has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tool:
    """A program found on this machine: an assembler, a compiler."""

    path: str
    release: str = ""
    """What it says of its version, such as `10.2`; "" when it did not answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A folder that a run depends on."""

    path: str
    length: int = 0
    """Characters of the whole path: `path` itself may be redacted."""
    ascii: bool = True
    ansi: bool = True
    """Whether Windows' ANSI code page can write it, which C programs need; True elsewhere."""
    writable: bool = True
    free_bytes: int = 0
    filesystem: str = ""
    """`9p` for a Windows disk inside WSL, `onedrive`, `network`; "" for an ordinary local disk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """The Python that runs the studio."""

    executable: str = ""
    implementation: str = "CPython"
    bits: int = 64
    gil: bool = True
    kind: str = "regular"
    """regular, conda, store or embedded: where the Python under the virtual environment comes from."""
    banner: str = ""
    """sys.version"""
    headers: bool = True
    """Whether Python.h is there."""
    import_library: bool = True
    """Windows: whether python3XX.lib is there; True elsewhere."""
    utf8: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimeLibrary:
    """One DLL of Microsoft's C++ runtime, the copy that a process loads first."""

    path: str
    version: str = ""
    """Such as `14.44.35211.0`; "" when it cannot be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowsFacts:
    """What only Windows has."""

    build: int = 0
    code_page: int = 0
    long_paths: bool | None = None
    developer_mode: bool | None = None
    app_control: str = ""
    """Smart App Control: off, evaluation, on; "" when unknown."""
    display_timeout_s: int = 2
    """TdrDelay: how long a GPU with a display may work without a break."""
    runtimes: Mapping[str, RuntimeLibrary] = field(default_factory=dict)
    """File name, such as `msvcp140.dll` -> the copy found first; absent ones are left out."""
    commit_limit_bytes: int = 0
    commit_free_bytes: int = 0
    msvc: str = ""
    """Path of cl.exe; "" without one."""
    distributions: tuple[Distribution, ...] = ()
    wsl_state: str = ""
    """What `wsl.exe` is here: absent, off, empty (no distribution), ready; "" not asked, or without an answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """One Linux of WSL as Windows lists it."""

    name: str
    version: int
    """1 or 2: only 2 can reach the GPU."""
    default: bool = False
    running: bool = False
    gpu: bool | None = None
    """Whether /dev/dxg and libcuda are there; None when it was not asked, because asking starts it."""
    python: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class GuestFacts:
    """What only a Linux inside WSL has."""

    version: int = 2
    distribution: str = ""
    kernel: str = ""
    dxg: bool = True
    """Whether /dev/dxg, the way to the GPU, is there."""
    libcuda: str = ""
    """Which libcuda.so.1 a process would load; "" for none."""
    linux_driver: bool = False
    """Whether an NVIDIA driver for Linux is installed, which hides the one that Windows provides."""
    interop: bool = True
    """Whether Windows programs can be started."""
    windows_ram_bytes: int = 0
    """Memory of the whole PC; 0 when unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelTest:
    """One fast kernel against its PyTorch twin on this GPU."""

    op: str
    ok: bool
    error: float = 0.0
    """Largest difference as a share of the largest value, forward and gradients."""
    twin_ms: float = 0.0
    kernel_ms: float = 0.0
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSpeed:
    """How fast a run on this machine was, beside what had been reckoned: the next ones are reckoned by it."""

    run: str
    gpu: str
    """Name of the card; "" for the processor."""
    path: str
    """decoder or stock: whose code computed the steps."""
    quantization: str
    method: str
    """lora or full"""
    parameters: int
    """Of the base model."""
    tokens_per_s: float
    """Median over its last steps, padding not counted."""
    reckoned_tokens_per_s: float
    """What planning/speed_estimate.py says of it without any measurement."""
    time_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineFacts:
    """Raw facts of the machine, one JSON object without conclusions: those are drawn in studio/machine from these."""

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

    release: str = ""
    """Of the system: `10.0.22631`, `6.1.0-13-amd64`."""
    architecture: str = ""
    """Of the machine: x86_64, arm64."""
    process_architecture: str = ""
    """Of this process; differs under emulation."""
    locale: str = ""
    container: bool = False
    interpreter: Interpreter = Interpreter()
    ram_available_bytes: int = 0
    ram_limit_bytes: int = 0
    """A container's limit; 0 without one."""
    shm_bytes: int = 0
    """Size of /dev/shm; 0 where there is none."""
    owners: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Import package -> the distributions that own it, for `triton`, `pynvml`, `torch`; more than one is a conflict."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that decide something here, as the person has them: before any repair of ours."""
    dead_overrides: tuple[str, ...] = ()
    """Variables that name a program which is not there, such as CC."""
    repairs: tuple[str, ...] = ()
    """Names of the repairs (machine/repairs.py) that this process's environment has had."""
    places: Mapping[str, Place] = field(default_factory=dict)
    """home, workspace, temp, triton_cache, model_cache, program -> Place"""
    assemblers: tuple[Tool, ...] = ()
    """Every ptxas that an override names or that lies on PATH, in this order."""
    shadows: tuple[str, ...] = ()
    """Files or folders that hide a package of that name (a local triton.py), and LD_LIBRARY_PATH or PATH entries that
    hold another CUDA's or cuDNN's libraries."""

    driver: str = ""
    """Version of the NVIDIA driver, such as `581.29`."""
    driver_error: str = ""
    """Why the driver cannot be asked: `no answer within 10 s`, `Driver/library version mismatch`; "" when it can."""
    driver_module: str = ""
    """Linux: version of the loaded kernel module, when it differs from the library's."""

    torch_error: str = ""
    """Why torch cannot be imported; "" when it can or was not tried."""
    torch_hip: str = ""
    torch_xpu: bool = False
    torch_architectures: tuple[str, ...] = ()
    """Chips that the build holds code for: sm_75, gfx1100; empty when unknown."""
    torch_sees_gpu: bool | None = None
    """torch.cuda.is_available(); None when it was not asked."""
    triton_folder: str = ""
    triton_in_platlib: bool = True
    """Whether Triton lies in the interpreter's own package folder, where alone it looks for its tools on Windows."""
    triton_assembler: Tool | None = None
    """The ptxas that Triton takes."""
    triton_compiler: str = ""
    """The C compiler that Triton takes."""
    bitsandbytes_libraries: tuple[str, ...] = ()
    """Names of its native libraries, such as libbitsandbytes_cuda130.so."""
    kernel_tests: tuple[KernelTest, ...] = ()
    broken_kernels: Mapping[str, str] = field(default_factory=dict)
    """Op -> why its fast kernel failed in an earlier run with the same GPU, driver and versions."""
    context_bytes: int = 0
    """Of the GPU's memory, what libraries and driver hold beside torch's own, as an earlier run measured it."""
    fragmentation: float = 0.0
    """What torch held as a multiple of what it handed out, measured likewise; 0: not measured yet."""
    speeds: tuple[MeasuredSpeed, ...] = ()
    """What earlier runs on this machine measured, the newest first."""
    processor_rate: float = 0.0
    """Operations a second of a product of fp32 matrices on all cores, measured once; 0: not measured."""
    hub: str = ""
    """Whether the model hub answers: "" not asked, `ok`, else the error."""
    hub_endpoint: str = ""
    windows: WindowsFacts | None = None
    guest: GuestFacts | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFacts:
    """What a model folder is, read without loading its weights."""

    source: str
    name: str  # hub id or folder name: never a local path
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
    mlp_width: int = 0
    """Inner width of the MLP; 0, like each number below, when unknown."""
    query_heads: int = 0
    key_heads: int = 0
    head_dim: int = 0
    sliding_window: int = 0
    windowed_layers: tuple[bool, ...] = ()
    """Tokens that a token sees in a windowed layer, 0: none has a window; and whether each layer is one, (): all."""
    tied_embeddings: bool | None = None
    """Whether output and input embeddings are the same weights; None when unknown."""
    scores_capped: bool = False
    """Whether attention caps its scores (Gemma 2), which PyTorch's fused attention cannot do."""
    scaled_branches: tuple[str, ...] = ()
    """Which results, of `attention` and `mlp`, are multiplied before they join the residual stream (Granite)."""
    sdpa: bool = True  # transformers can compute its attention by PyTorch's fused one
    linear_parameters: int = 0
    expert_parameters: int = 0
    """Weights of all layers' linears, experts and routers left out; of their experts, biases left out."""
    experts: tuple[int, int, int] = (0, 0, 0)
    """Layers with experts, how many each of them has, and how many of those a token passes."""
    expert_matrices: int = 3
    """Gate, up and down of an expert; 2 where it has no gate, 0 without experts."""
    linears: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    norms: Mapping[str, int] = field(default_factory=dict)
    """Name inside a layer, such as `self_attn.q_proj` -> (outputs, inputs), or of a norm or a vector -> its width."""
    attentions: tuple[AttentionFacts, ...] = ()  # where layers differ in its shapes
    blocks: tuple[BlockFacts, ...] = ()  # where each layer is one block of several kinds
    packed: bool = False  # a GGUF file that is not opened yet


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
    expected_rows: int = 0
    expected_tokens: int = 0
    """What the head suggests of all rows (data/forecast.py), where they were not counted; 0: nothing."""
    rows_cut: int = 0
    rows_dropped: Mapping[str, int] = field(default_factory=dict)
    """Rule -> rows, for rows that a named rule left out: rows_read = rows_used + rows_refused + these."""
    quarantine: str = ""
    """Path of the file with the refused rows; "" where there are none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A decision and its reason."""

    value: Any
    reason: Text


@dataclass(frozen=True, kw_only=True, slots=True)
class Slower:
    """Something that costs a run time, and how much."""

    id: str
    """decoder, kernels, memory, precision, card, rows or padding (planning/slow_paths.py)."""
    reason: Text
    factor: float
    """How many times as long the run takes for it."""
    field: str = ""
    """Dotted path of the setting that decides it; "" for none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """Something that the person may do for a better run."""

    title: Text
    why: Text
    command: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendPlan:
    """What a run will really use, each choice with its reason."""

    device: Choice  # `cuda:0`, `cpu`, ...
    dtype: Choice  # of the arithmetic: `bf16`, `fp16` or `fp32`
    attention: Choice
    quantization: Choice  # `none`, `nf4`, `mixed`, `int8`, or what the base is stored in
    optimizer: Choice
    checkpointing: Choice  # whether activations are recomputed in the backward pass
    kernels: Mapping[str, Choice]  # op -> `triton` or `reference`
    offers: tuple[Offer, ...] = ()
    multi_gpu: Choice = Choice(value="single", reason=Text(id="plan.multi_gpu.single"))  # one card trains
    row: int = 0  # of older studios' runs: the number of what is `backend` now
    memory: MemoryPolicy | None = None
    """What the studio's own decoder keeps for its backward pass; None where the model's own forward trains."""
    fp8: Choice = Choice(value=False, reason=Text(id="plan.fp8.off"))
    """Whether the studio's own decoder multiplies by frozen weights in 8 bits: faster, and not exact."""
    micro_batch: Choice = Choice(value=0, reason=Text(id="plan.micro_batch.one"))
    """How many rows of a step go at once, were all as long as the longest; 0 in runs of older studios."""
    slower: tuple[Slower, ...] = ()
    """What makes it clearly slower than it could be, the costliest first."""
    rope: Choice = Choice(value="", reason=Text(id="plan.rope.none"))  # how positions are stretched: `yarn 4`
    more_bits: float = 0.0  # of a `mixed` base: room for 16 bits, as a share of what 4 take
    shared_prompts: Choice = Choice(value=0.0, reason=Text(id="plan.shared_prompts.none"))
    """Which share of a step's tokens is spared because answers share their prompt; 0: each is computed with its own."""
    backend: str = ""
    """Which row of planning/backend_choice.py decided; "" in runs of older studios."""

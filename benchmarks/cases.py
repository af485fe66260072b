"""What compare.py measures: each Case is one stack in one setting, for the rows of the table in README.md."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

START_S = {"hf": 20, "liger": 22, "unsloth": 50, "ours": 22, "engine": 45}
"""From the start of a process to its first step, as seen on one H200; the engine's include its whole run."""
MAKE_S = {
    "tiny": 2,
    "qwen3-0.6b": 8,
    "llama-1b": 8,
    "llama-8b": 35,
    "qwen3-8b": 35,
    "gemma3-4b": 20,
    "mistral-7b": 32,
    "phi3-medium": 60,
    "phi3-medium-split": 60,
    "qwen3-30b-a3b-slice": 40,
    "gpt-oss-20b-slice": 20,
    "qwen3.5-9b-slice": 20,
    "gemma4-26b-slice": 30,
    "gemma3n-e4b-slice": 20,
    "glm-4.7-flash-slice": 20,
    "llama-3b-slice": 8,
    "smollm-slice": 3,
}
"""To write the weights of a shape."""


CROWDING = 0.1
"""How much longer loading takes for each other process that loads at the same time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One stack in one setting; LoRA of rank 16 on every linear layer, random weights, random tokens."""

    name: str
    rows: tuple[int, ...]
    """The rows of the table that need it."""
    shape: str
    """One of make_model.SHAPES."""
    stack: str
    """hf, liger, unsloth; ours: the bare loop; engine: `launch.py train`."""
    bits: int
    """Of the frozen weights: 4 (NF4, double quantisation) or 16."""
    checkpointing: str
    """none, full (Unsloth: its own, with offload), or auto: the planner decides."""
    batch: int = 2
    tokens: int = 2048
    """Length of a row."""
    dtype: str = "bf16"
    lengths: str = "full"
    """full: every row is one document of `tokens`; packed: real lengths, several in a row; padded: one a row."""
    optimizer: str = "adamw_8bit"
    """adamw_8bit is bitsandbytes' in every stack; adamw is the studio's own."""
    triton: bool = True
    """False: importing Triton fails."""
    turing: bool = False
    """As on a card of compute capability 7.5: no flash or cuDNN attention, no dots in Triton."""
    fp8: bool = False
    targets: str = ""
    """Names of the linears with adapters, or all-linear; "": the seven of Llama, for the studio all there are."""
    dora: bool = False
    """Whether the length of each output's weights is trained, too."""
    stock: bool = False
    """The studio by the model's own forward, as it trains on a processor."""
    cold: bool = False
    """With an empty cache of compiled kernels; the engine also with a workspace that knows nothing of the machine."""
    alone: bool = False
    """Never with another stack's process on the card."""
    budget_of: str = ""
    """Name of the case whose measured peak is the memory that the planner may use."""
    cap_gib: float = 0.0
    """Limit of torch's allocator; 0: none."""
    longest: tuple[int, ...] = ()
    """Row lengths, ascending, of which the longest that runs is looked for, each try in a process of its own."""
    warmup_steps: int = 3
    warmup_tokens: int = 0
    """Length of a row in the steps before the timed ones; 0: `tokens`."""
    steps: int = 5
    """Timed steps of a round."""
    step_s: float = 0.5
    """What a step is expected to take."""
    peak_gib: float = 26.0
    """What the process is expected to need on the card at most."""

    @property
    def setting(self) -> tuple[object, ...]:
        """Cases with the same setting see the same tokens, so that their losses must agree."""
        return (
            self.shape,
            self.bits,
            self.batch,
            self.tokens,
            self.dtype,
            self.lengths,
            self.turing,
            bool(self.longest),
            self.dora,
            self.targets,
        )


CONTEXTS = (65536, 102400, 122880, 131072, 153600, 176128, 200704)
QLORA = {"shape": "llama-8b", "bits": 4}
LORA = {"shape": "llama-8b", "bits": 16}
DORA = {"dora": True, "steps": 3}
LONG = {**QLORA, "batch": 1, "tokens": 32768}
CONTEXT = {
    **QLORA,
    "batch": 1,
    "tokens": CONTEXTS[-1],
    "cap_gib": 23.5,
    "longest": CONTEXTS,
    "alone": True,
    "warmup_steps": 1,
    "warmup_tokens": 512,
    "steps": 1,
}
"""24 GiB less half a GiB for the driver's context, which lies outside torch's allocator."""
SMALL = {"shape": "qwen3-0.6b", "batch": 2, "tokens": 512, "steps": 20, "peak_gib": 8.0}
TURING = {**QLORA, "dtype": "fp16", "turing": True}
TINY = {"shape": "tiny", "tokens": 64, "peak_gib": 2.0}
MOE = {"shape": "qwen3-30b-a3b-slice"}
ATTENTION = "q_proj,k_proj,v_proj,o_proj"
POPULAR = {
    "gpt-oss-20b-slice": ATTENTION,
    "qwen3.5-9b-slice": "all-linear",
    "gemma4-26b-slice": ATTENTION,
    "glm-4.7-flash-slice": "q_a_proj,q_b_proj,kv_a_proj_with_mqa,kv_b_proj,o_proj",
}
"""Shapes whose experts peft cannot reach, with what it can."""
OTHER_SHAPES = ("qwen3-8b", "gemma3-4b", "mistral-7b", "phi3-medium")


def ours(name: str, *rows: int, **settings: Any) -> Case:
    """Return a case of the studio's bare step, whose planner decides what is kept."""
    return Case(name=name, rows=rows, stack="ours", checkpointing="auto", **settings)


def peer(name: str, *rows: int, stack: str, checkpointing: str, step_s: float, **settings: Any) -> Case:
    """Return a case of another stack."""
    return Case(name=name, rows=rows, stack=stack, checkpointing=checkpointing, step_s=step_s, **settings)


def engine(name: str, *rows: int, **settings: Any) -> Case:
    """Return a case of `launch.py train`."""
    return Case(name=name, rows=rows, stack="engine", checkpointing="auto", steps=15, alone=True, **settings)


# fmt: off
CASES: tuple[Case, ...] = (
    # 1, 2, 12: QLoRA.
    peer("qlora.hf", 2, 12, stack="hf", checkpointing="full", step_s=0.69, peak_gib=20.0, **QLORA),
    peer("qlora.liger", 2, stack="liger", checkpointing="full", step_s=0.64, peak_gib=13.0, **QLORA),
    peer("qlora.unsloth", 1, 2, stack="unsloth", checkpointing="full", step_s=0.39, peak_gib=9.0, **QLORA),
    peer("qlora.unsloth.none", 2, stack="unsloth", checkpointing="none", step_s=0.27, peak_gib=23.0, **QLORA),
    ours("qlora.ours", 2, 15, peak_gib=40.0, **QLORA),
    ours("qlora.ours.adamw", 2, optimizer="adamw", peak_gib=40.0, **QLORA),
    engine("qlora.engine", 2, cold=True, **QLORA),
    ours("qlora.ours.budget", 1, budget_of="qlora.unsloth", peak_gib=9.0, **QLORA),
    ours("qlora.ours.no_triton", 12, triton=False, budget_of="qlora.hf", peak_gib=20.0, **QLORA),
    # 3, 5, 12: LoRA on 16-bit weights.
    peer("lora.hf", 12, stack="hf", checkpointing="full", step_s=0.55, peak_gib=25.0, **LORA),
    peer("lora.hf.none", 3, 12, stack="hf", checkpointing="none", step_s=0.4, peak_gib=51.0, **LORA),
    peer("lora.unsloth.none", 3, 5, stack="unsloth", checkpointing="none", step_s=0.26, peak_gib=33.0, **LORA),
    ours("lora.ours", 3, peak_gib=45.0, **LORA),
    engine("lora.engine", 3, cold=True, **LORA),
    ours("lora.ours.fp8", 5, fp8=True, peak_gib=60.0, **LORA),
    ours("lora.ours.no_triton", 12, triton=False, budget_of="lora.hf", peak_gib=25.0, **LORA),
    ours("lora.ours.no_triton.free", 12, triton=False, budget_of="lora.hf.none", peak_gib=51.0, **LORA),
    # 4, 6: long rows.
    peer("long.unsloth", 4, stack="unsloth", checkpointing="full", step_s=5.0, **LONG),
    ours("long.ours", 4, budget_of="long.unsloth", step_s=4.5, **LONG),
    ours("context.ours", 6, step_s=45.0, **CONTEXT),
    peer("context.unsloth", 6, stack="unsloth", checkpointing="full", step_s=20.0,
         **{**CONTEXT, "longest": (49152, 65536, 81920), "tokens": 81920}),
    # 7: documents of real lengths.
    peer("padded.hf", 7, stack="hf", checkpointing="full", step_s=2.5, lengths="padded", **{**QLORA, "batch": 8}),
    peer("packed.unsloth", 7, stack="unsloth", checkpointing="full", step_s=0.5, lengths="packed", alone=True,
         **QLORA),
    ours("packed.ours", 7, lengths="packed", **QLORA),
    # 9: time to the first step, each process by itself.
    peer("first.hf", 9, stack="hf", checkpointing="full", step_s=0.69, alone=True, steps=1, **QLORA),
    ours("first.ours.cold", 9, alone=True, cold=True, steps=1, **QLORA),
    ours("first.ours", 9, alone=True, steps=1, **QLORA),
    engine("first.engine", 9, **QLORA),
    # 11: other families.
    *(
        case
        for shape in OTHER_SHAPES
        for case in (
            peer(f"{shape}.unsloth", 11, shape=shape, stack="unsloth", bits=4, checkpointing="full", step_s=0.5,
                 peak_gib=15.0),
            ours(f"{shape}.ours", 11, shape=shape, bits=4, peak_gib=45.0),
        )
    ),
    # Unsloth's own copies of Phi-3 have q, k, v and gate, up as separate layers.
    peer("phi3-medium-split.unsloth", 11, shape="phi3-medium-split", stack="unsloth", bits=4, checkpointing="full",
         step_s=0.7),
    # 13: a small model on short rows.
    *(
        case
        for way, bits in (("lora", 16), ("qlora", 4))
        for case in (
            peer(f"small.{way}.hf", 13, stack="hf", bits=bits, checkpointing="none", step_s=0.19, **SMALL),
            peer(f"small.{way}.unsloth", 13, stack="unsloth", bits=bits, checkpointing="full", step_s=0.19, **SMALL),
            peer(f"small.{way}.unsloth.none", 13, stack="unsloth", bits=bits, checkpointing="none", step_s=0.2,
                 **SMALL),
            ours(f"small.{way}.ours", 13, bits=bits, step_s=0.1, **SMALL),
        )
    ),
    # 14: what a Turing card can do.
    peer("turing.hf", 14, stack="hf", checkpointing="full", step_s=0.9, **TURING),
    ours("turing.ours", 14, **TURING),
    # 15: DoRA; the share of LoRA's speed needs row 2's qlora.ours and row 3's lora.ours in the same call.
    peer("dora.qlora.hf", 15, stack="hf", checkpointing="full", step_s=1.6, peak_gib=30.0, **QLORA, **DORA),
    ours("dora.qlora.ours", 15, peak_gib=60.0, **QLORA, **DORA),
    peer("dora.lora.hf", 15, stack="hf", checkpointing="full", step_s=1.4, peak_gib=40.0, **LORA, **DORA),
    ours("dora.lora.ours", 15, peak_gib=66.0, **LORA, **DORA),
    # 16: experts; adapters on all there is (Unsloth: the same), and on attention alone, as peft can.
    peer("moe.unsloth", 16, stack="unsloth", bits=16, checkpointing="none", step_s=0.15, peak_gib=24.0, **MOE),
    ours("moe.ours", 16, bits=16, targets="all-linear", step_s=0.1, peak_gib=22.0, **MOE),
    peer("moe.nf4.unsloth", 16, stack="unsloth", bits=4, checkpointing="full", step_s=0.15, peak_gib=22.0, **MOE),
    ours("moe.nf4.ours", 16, bits=4, targets="all-linear", step_s=0.1, peak_gib=12.0, **MOE),
    peer("moe.full.unsloth", 16, stack="unsloth", bits=16, checkpointing="full", step_s=0.15, peak_gib=22.0, **MOE),
    ours("moe.ours.budget", 16, bits=16, targets="all-linear", budget_of="moe.full.unsloth", step_s=0.15,
         peak_gib=22.0, **MOE),
    ours("moe.nf4.ours.budget", 16, bits=4, targets="all-linear", budget_of="moe.nf4.unsloth", step_s=0.15,
         peak_gib=12.0, **MOE),
    peer("moe.attention.hf", 16, stack="hf", bits=16, checkpointing="none", step_s=0.25, targets=ATTENTION,
         peak_gib=24.0, **MOE),
    ours("moe.attention.ours", 16, bits=16, targets=ATTENTION, step_s=0.1, peak_gib=22.0, **MOE),
    # 17: slices of other families, the same adapters in both.
    *(
        case
        for shape, targets in POPULAR.items()
        for case in (
            peer(f"{shape}.hf", 17, shape=shape, stack="hf", bits=16, checkpointing="none", step_s=0.6,
                 targets=targets, peak_gib=45.0),
            ours(f"{shape}.ours", 17, shape=shape, bits=16, targets=targets, step_s=0.3, peak_gib=30.0),
        )
    ),
    # 0: a try of the benchmark itself on any machine.
    peer("tiny.hf", 0, stack="hf", bits=16, checkpointing="none", step_s=0.1, **TINY),
    peer("tiny.liger", 0, stack="liger", bits=16, checkpointing="none", step_s=0.1, **TINY),
    peer("tiny.unsloth", 0, stack="unsloth", bits=16, checkpointing="full", step_s=0.1, **TINY),
    ours("tiny.ours", 0, bits=16, step_s=0.1, **TINY),
    ours("tiny.ours.no_triton", 0, bits=16, step_s=0.1, triton=False, optimizer="adamw", **TINY),
    peer("tiny.qlora.hf", 0, stack="hf", bits=4, checkpointing="full", step_s=0.1, **TINY),
    peer("tiny.dora.hf", 0, stack="hf", bits=16, checkpointing="none", step_s=0.1, dora=True, **TINY),
    ours("tiny.dora.ours", 0, bits=16, step_s=0.1, dora=True, **TINY),
    ours("tiny.qlora.ours", 0, bits=4, step_s=0.1, budget_of="tiny.qlora.hf", **TINY),
    engine("tiny.engine", 0, bits=16, step_s=0.1, **TINY),
)
# fmt: on
OTHER_PROGRAMS = {8: "benchmarks/memory.py", 10: "benchmarks/kernels.py"}
"""Rows of the table that are measured elsewhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What fits into the time, and what does not."""

    cases: tuple[Case, ...]
    left_out: tuple[tuple[int, float], ...]
    """(row, expected seconds) of each row that did not fit."""
    expected_s: float


def start_s(case: Case) -> float:
    """Return after how many seconds the process of a case is expected to be warmed up."""
    runs = 2 if case.stack == "engine" and not case.cold else 1
    return runs * START_S[case.stack] + case.warmup_steps * case.step_s


def expect_s(case: Case, rounds: int) -> float:
    """Return how long a case is expected to take by itself, in seconds."""
    if case.longest:
        return math.ceil(math.log2(len(case.longest) + 1)) * (START_S[case.stack] + case.step_s)
    return start_s(case) + rounds * case.steps * case.step_s


def expect_together_s(cases: Iterable[Case], rounds: int) -> float:
    """Return how long cases are expected to take that load side by side and take their rounds in turn, in seconds."""
    cases = tuple(cases)
    loading = max(map(start_s, cases), default=0.0) * (1 + CROWDING * max(0, len(cases) - 1))
    return loading + sum(expect_s(case, rounds) - start_s(case) for case in cases)


def complete(cases: Iterable[Case], measured: Iterable[str], known: Iterable[Case]) -> tuple[Case, ...]:
    """Return `cases` with those whose peak is another's budget, in the order of `known`: they come before it.

    Those in `measured` have their peak already.
    """
    by_name = {case.name: case for case in known}
    wanted = {case.name for case in cases}
    wanted |= {by_name[name].budget_of for name in wanted} - {"", *measured}
    return tuple(case for case in known if case.name in wanted)


def choose(
    rows: Sequence[int],
    seconds: float,
    *,
    stacks: Sequence[str] = (),
    names: Sequence[str] = (),
    rounds: int = 1,
    together: bool = False,
    made: Sequence[str] = (),
    measured: Iterable[str] = (),
    known: Iterable[Case] = CASES,
) -> Plan:
    """Return the cases of as many whole `rows`, in this order, as fit into `seconds`.

    `stacks` and `names`, where given, leave out all others. A case that two rows share, and a model that two cases
    share, count once; `together` says that the cases of a setting load side by side. Shapes in `made` are there
    already, and so are the peaks of the cases in `measured`.
    """
    known = tuple(known)
    chosen: tuple[Case, ...] = ()
    left_out: list[tuple[int, float]] = []

    def price(cases: Iterable[Case]) -> float:
        cases = tuple(cases)
        making = sum(MAKE_S[shape] for shape in {case.shape for case in cases} - set(made))
        if not together:
            return making + sum(expect_s(case, rounds) for case in cases)
        crowds = group(case for case in cases if not case.alone)
        crowded = sum(expect_together_s(crowd, rounds) for crowd in crowds)
        return making + crowded + sum(expect_s(case, rounds) for case in cases if case.alone)

    for row in rows:
        wanted = [
            case
            for case in known
            if row in case.rows and (not stacks or case.stack in stacks) and (not names or case.name in names)
        ]
        joined = complete({*chosen, *wanted}, measured, known)
        if price(joined) <= seconds:
            chosen = joined
        else:
            left_out.append((row, price(joined) - price(chosen)))
    return Plan(cases=chosen, left_out=tuple(left_out), expected_s=price(chosen))


def group(cases: Iterable[Case]) -> list[list[Case]]:
    """Return the cases that see the same tokens together, in their order; groups of one shape follow each other."""
    groups: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        groups.setdefault(case.setting, []).append(case)
    shapes = {setting[0]: number for number, setting in reversed(list(enumerate(groups)))}
    return [groups[setting] for setting in sorted(groups, key=lambda setting: shapes[setting[0]])]


def to_json(case: Case) -> dict[str, object]:
    """Return the case as plain values, for the process that measures it."""
    return dataclasses.asdict(case)


def from_json(values: dict[str, object]) -> Case:
    """Return the Case of to_json()."""
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Case(**{**values, **lists})

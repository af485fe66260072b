"""What the rows of the table in README.md compare, and what must and should come out."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cases import OTHER_SHAPES


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One comparison that a row of the table makes."""

    row: int
    case: str
    """What is compared, in words."""
    ours: str
    """Name of the studio's case."""
    others: tuple[str, ...] = ()
    """Names of those that it is compared with: the best of them counts."""
    quantity: str = "tokens_per_s"
    """tokens_per_s, peak_mib, first_step_s: the ratio of ours to theirs. longest: tokens, ours alone. losses: the
    largest difference, as a share."""
    must: float
    goal: float | None = None

    @property
    def less(self) -> bool:
        """Whether a smaller value is better."""
        return self.quantity in ("peak_mib", "first_step_s", "losses")


def against(row: int, case: str, ours: str, *others: str, must: float, goal: float | None = None) -> Claim:
    """Return a claim on tokens/s."""
    return Claim(row=row, case=case, ours=ours, others=others, must=must, goal=goal)


def within(
    row: int, case: str, ours: str, *others: str, must: float = 1.0, goal: float | None = None
) -> Claim:
    """Return a claim on peak memory."""
    return Claim(row=row, case=case, ours=ours, others=others, quantity="peak_mib", must=must, goal=goal)


CLAIMS: tuple[Claim, ...] = (
    against(1, "QLoRA 2x2048 in Unsloth's peak", "qlora.ours.budget", "qlora.unsloth", must=1.10, goal=1.25),
    within(1, "its peak", "qlora.ours.budget", "qlora.unsloth", must=1.05, goal=1.0),
    against(
        2,
        "QLoRA 2x2048, memory free / Unsloth, nothing recomputed",
        "qlora.ours",
        "qlora.unsloth.none",
        must=1.05,
        goal=1.15,
    ),
    against(2, "/ Unsloth's default", "qlora.ours", "qlora.unsloth", must=1.45, goal=1.6),
    against(2, "/ HF + PEFT", "qlora.ours", "qlora.hf", must=2.5, goal=2.9),
    against(2, "`launch.py train` / the bare loop", "qlora.engine", "qlora.ours", must=0.97),
    against(
        3,
        "LoRA 2x2048, memory free / Unsloth, nothing recomputed",
        "lora.ours",
        "lora.unsloth.none",
        must=1.05,
        goal=1.15,
    ),
    against(3, "`launch.py train` / the bare loop", "lora.engine", "lora.ours", must=0.97),
    against(4, "QLoRA 1x32768 in Unsloth's peak", "long.ours", "long.unsloth", must=1.10, goal=1.2),
    within(4, "its peak", "long.ours", "long.unsloth", must=1.05),
    against(
        5,
        "8-bit products, LoRA 2x2048 / Unsloth LoRA, nothing recomputed",
        "lora.ours.fp8",
        "lora.unsloth.none",
        must=1.4,
        goal=1.7,
    ),
    Claim(
        row=6,
        case="longest QLoRA row in 24 GB, tokens",
        ours="context.ours",
        others=("context.unsloth",),
        quantity="longest",
        must=100_000,
        goal=150_000,
    ),
    against(7, "documents of real lengths / Unsloth packed", "packed.ours", "packed.unsloth", must=1.2),
    against(7, "/ HF + PEFT padded", "packed.ours", "padded.hf", must=3.0),
    Claim(
        row=9,
        case="time to the first step, kernels compiled before / HF + PEFT",
        ours="first.ours",
        others=("first.hf",),
        quantity="first_step_s",
        must=1.0,
    ),
    Claim(
        row=9,
        case="the same with no kernel compiled",
        ours="first.ours.cold",
        others=("first.hf",),
        quantity="first_step_s",
        must=1.0,
    ),
    Claim(
        row=9,
        case="`launch.py train`, run before on this machine / HF + PEFT",
        ours="first.engine",
        others=("first.hf",),
        quantity="first_step_s",
        must=1.0,
    ),
    Claim(
        row=9,
        case="`launch.py train` in a new workspace",
        ours="qlora.engine",
        others=("first.hf",),
        quantity="first_step_s",
        must=1.0,
    ),
    *(
        against(
            11,
            f"{shape}, QLoRA 2x2048 / Unsloth's default",
            f"{shape}.ours",
            f"{shape}.unsloth",
            *(("phi3-medium-split.unsloth",) if shape == "phi3-medium" else ()),
            must=1.1,
        )
        for shape in OTHER_SHAPES
    ),
    against(12, "QLoRA 2x2048 without Triton / HF + PEFT", "qlora.ours.no_triton", "qlora.hf", must=1.5),
    within(12, "its peak", "qlora.ours.no_triton", "qlora.hf"),
    against(12, "LoRA 2x2048 without Triton / HF + PEFT", "lora.ours.no_triton", "lora.hf", must=1.5),
    within(12, "its peak", "lora.ours.no_triton", "lora.hf"),
    against(
        12, "the same / HF + PEFT, nothing recomputed", "lora.ours.no_triton.free", "lora.hf.none", must=1.5
    ),
    within(12, "its peak", "lora.ours.no_triton.free", "lora.hf.none"),
    *(
        against(
            13,
            f"Qwen3-0.6B {name} 2x512 / the best of Unsloth and HF",
            f"small.{way}.ours",
            f"small.{way}.hf",
            f"small.{way}.unsloth",
            f"small.{way}.unsloth.none",
            must=3.0,
            goal=8.0,
        )
        for way, name in (("lora", "LoRA"), ("qlora", "QLoRA"))
    ),
    against(14, "Turing's means, fp16 / HF + PEFT in fp16", "turing.ours", "turing.hf", must=1.4),
    Claim(
        row=14,
        case="largest difference of a loss",
        ours="turing.ours",
        others=("turing.hf",),
        quantity="losses",
        must=0.01,
    ),
    against(15, "DoRA on NF4 2x2048 / HF + PEFT", "dora.qlora.ours", "dora.qlora.hf", must=1.5),
    against(15, "/ our LoRA", "dora.qlora.ours", "qlora.ours", must=0.75),
    against(15, "DoRA on 16 bits 2x2048 / HF + PEFT", "dora.lora.ours", "dora.lora.hf", must=1.5),
)

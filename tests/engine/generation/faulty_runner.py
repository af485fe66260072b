"""Answers while something breaks: run as a program by test_faults. Argument: `kernel`, `sticky` or `memory`.

`kernel` and `sticky` need TRITON_INTERPRET=1 before this starts: Triton decides at decoration who runs a kernel. Prints
one JSON object.
"""

from __future__ import annotations

import json
import sys

import torch
from studio_kernels import rms_norm

from studio.engine.generation import generator
from studio.engine.generation.answerer import Answerer
from studio.engine.generation.request import Completion, Request, Sampling
from studio.engine.stop_tokens import Ends
from tests.models.decoder.models import make_model

PROMPTS = [list(range(3 + i, 20 + 2 * i)) for i in range(6)]
LONGEST_TOKENS = 5000
ERRORS = {
    "kernel": "Triton Error [CUDA]: out of resource: shared memory",
    "sticky": "CUDA error: an illegal memory access was encountered",
}


class Tokenizer:
    pad_token_id = 0


class Breakable:
    """Stands before one launched kernel, counts its launches, and fails from the one on where it is told to."""

    def __init__(self, kernel: object) -> None:
        self.kernel, self.launches, self.last = kernel, 0, sys.maxsize

    def __getitem__(self, grid: object):
        def launch(*arguments, **options):
            self.launches += 1
            if self.launches > self.last:
                raise RuntimeError(ERRORS[sys.argv[1]])
            return self.kernel[grid](*arguments, **options)

        return launch


def make_completions(tokens: int) -> list[Completion]:
    sampling = [Sampling(max_new_tokens=tokens, temperature=i % 2, seed=i) for i in range(len(PROMPTS))]
    return [Completion(Request(tuple(one), drawn)) for one, drawn in zip(PROMPTS, sampling, strict=True)]


def break_kernel(model: torch.nn.Module) -> dict[str, object]:
    """Let the norm's kernel fail in the middle of the answers, and of a layer."""
    wanted = make_completions(16)
    Answerer(model, Tokenizer(), Ends(())).grow(wanted)
    name = next(
        name for name in vars(rms_norm) if name.startswith("_") and "forward" in name and "kernel" in name
    )
    kernel = Breakable(getattr(rms_norm, name))
    setattr(rms_norm, name, kernel)
    answerer = Answerer(model, Tokenizer(), Ends(()))
    answerer._build({"rms_norm": "triton"})
    found, steps, error = make_completions(16), [], ""

    def on_step(grown: list[Completion]) -> None:
        steps.append(len(grown))
        if len(steps) == 6:
            kernel.last = kernel.launches + 1

    try:
        answerer.grow(found, on_step=on_step, slots=4)
    except RuntimeError as raised:
        error = str(raised)
    return {
        "wanted": [one.tokens for one in wanted], "found": [one.tokens for one in found], "error": error,
        "launches": kernel.launches, "kernels": answerer._kernels, "slow": answerer.slow is not None,
        "reasons": [one.reason for one in found],
    }  # fmt: skip


def starve(model: torch.nn.Module) -> dict[str, object]:
    """Let the system refuse an arena of all slots: the process may have little more than it has."""
    import resource

    def make() -> list[Completion]:
        """As many answers as go at once, of which the first may become very long, and takes its room beforehand."""
        lengths = [LONGEST_TOKENS, *[40] * (generator.SLOTS - 1)]
        drawn = [Sampling(max_new_tokens=length, seed=i, temperature=1.0) for i, length in enumerate(lengths)]
        return [Completion(Request(tuple(PROMPTS[i % 6]), one)) for i, one in enumerate(drawn)]

    def grow(answerer: Answerer) -> list[Completion]:
        found = make()

        def on_step(grown: list[Completion]) -> None:
            if all(one.reason for one in found[1:]):
                found[0].reason = found[0].reason or "stopped"

        answerer.grow(found, on_step=on_step, arrivals=list)
        return found[1:]

    wanted = grow(Answerer(model, Tokenizer(), Ends(())))
    answerer = Answerer(model, Tokenizer(), Ends(()))
    answerer.answer([Request(tuple(PROMPTS[0]), Sampling(max_new_tokens=4))])
    least = -(-(LONGEST_TOKENS + len(PROMPTS[0])) // generator.PAGE_TOKENS)
    whole_bytes = least * generator.SLOTS * answerer._generator.decoder.page_bytes
    with open("/proc/self/statm", encoding="ascii") as file:
        now_bytes = int(file.read().split()[0]) * resource.getpagesize()
    limit = now_bytes + whole_bytes // 2
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    found = grow(answerer)
    return {
        "whole": least * generator.SLOTS, "pages": answerer._generator._pool.count, "least": least,
        "wanted": [one.tokens for one in wanted], "found": [one.tokens for one in found],
        "reasons": [one.reason for one in found], "slow": answerer.slow is not None,
    }  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1] == "memory":
        model = make_model("llama", max_position_embeddings=8192, num_key_value_heads=4, head_dim=64)
        result = starve(model)
    else:
        result = break_kernel(make_model("llama"))
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""What a merged folder's model computes in fp32, layer by layer where it can be: other forms are held against it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studio.engine.exporters.streamed_merge import draw_dense

if TYPE_CHECKING:
    import torch

PROMPTS = ("The quick brown fox jumps over the lazy", "Q: 12 + 30 =\nA:", "def add(a, b):\n    return")


def open_plain(folder: Path, go_on: Callable[[], None]) -> Any:
    """Return the merged model in fp32, to compute what its columns and its next tokens are: streamed, where it can be.

    Its weights then lie in the folder's files; `go_on` is called before each part that computes, and may raise.
    """
    from studio.models.streamed_model import read_folder, stream

    model = draw_dense(folder)
    if model is None:
        return load_whole(folder)
    stream(model, read_folder(model, folder), go_on)
    return model


def load_whole(folder: Path) -> Any:
    """Return the merged model in fp32 with all its weights, which may be changed."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).eval()


@dataclass(frozen=True, slots=True)
class FolderAnswers:
    """What a folder's model says, which its file is held against."""

    kind: type
    """Its class in transformers."""
    prompts: list[list[int]]
    shares: list[torch.Tensor]
    """log-probabilities (V,) fp32 of the token behind each prompt"""

    @classmethod
    def measure(cls, model: Any, folder: Path) -> FolderAnswers:
        """Ask the model that was opened from `folder`."""
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        prompts = [tokenizer(words)["input_ids"] for words in PROMPTS]
        return cls(type(model), prompts, predict(model, prompts))

    def list_kl(self, found: Sequence[Sequence[Sequence[float]]]) -> list[float]:
        """Return the KL of llama.cpp's next tokens from these, for each prompt that it did not end at."""
        import torch

        shares = []
        for one, listed in zip(self.shares, found, strict=True):
            if listed:
                other = torch.full_like(one, -50.0)
                ids, logs = zip(*listed, strict=True)
                other[torch.tensor(ids)] = torch.tensor(logs)
                shares.append(float((one.exp() * (one - other)).sum()))
        return shares


def predict(model: Any, prompts: list[list[int]]) -> list[torch.Tensor]:
    from studio.models.row_turns import compute_rows

    return compute_rows(model, prompts, lambda output: output.logits[0, -1].float().log_softmax(-1))

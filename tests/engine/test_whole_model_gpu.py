"""Whole fine-tunings on a real GPU: the engine beside a plain loop of transformers and peft, curve by curve.

Every stack begins with the same weights and the same adapter, and sees the same examples in the same order. The plain
loop in float32 is what is right. In bf16 autocast transformers' own loop is 0.6 % off from it on the demo (on a
processor, where the engine is 0.25 % off; with another attention it is 0.2 % off from itself): early on, Adam turns the
sign of a gradient that is all rounding into a full step. So each run is compared with what is right, and not with that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

import studio.engine.run as engine
from studio.core.codec import from_json
from studio.core.events import KernelFellBack, MemoryFreed, RunPlanned
from studio.core.facts import MachineFacts
from studio.core.recipe import DatasetSpec, ModelChoice, OptimSpec, Recipe, RunSpec, change_recipe
from studio.data.prepare import PreparedData, prepare
from studio.data.sequence_packing import Example
from studio.engine.batches import StepOrder
from studio.engine.learning_rate import learning_rate
from studio.engine.run_folder import create_run
from studio.models.adapt import adapt
from studio.models.load import quantization_config
from tests.conftest import make_model, write_jsonl
from tests.engine.conftest import Ran

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

ASSETS = Path(__file__).resolve().parents[2] / "assets"
SMOOTHING_STEPS = 10
CURVE_SHARE = 0.005
"""Largest distance of two curves."""
NOISE = 1.25
"""The same as a multiple of transformers' own, where that is further away: the rule for kernels and their twins."""
ACCURACY = 0.01
"""Largest difference of two shares of right tokens; 0.002 on a processor, where the engine got more of them right."""
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
LETTERS = "abcdefgh"
CERTAINTY = 0.75


@dataclass(frozen=True, slots=True)
class Trained:
    """One fine-tuning: its losses, and how it does on rows that it has not seen."""

    losses: list[float]
    tokens_right: float
    """Share of the trained tokens that the model would write itself."""
    rows_right: float
    """Share of the rows of which that holds for every token: what greedy decoding answers exactly."""

    @property
    def curve(self) -> np.ndarray:
        """The losses, each the mean of SMOOTHING_STEPS."""
        return np.convolve(self.losses, np.full(SMOOTHING_STEPS, 1 / SMOOTHING_STEPS), "valid")


def distance(one: Trained, other: Trained) -> float:
    """Return the area between two curves as a share of the area under the second."""
    return float(np.abs(one.curve - other.curve).sum() / other.curve.sum())


@dataclass(slots=True)
class Case:
    """What is trained: a recipe that goes on from a given adapter, and what it is measured on."""

    recipe: Recipe
    held_out: DatasetSpec
    work: Path
    device: str = "cuda"
    _read: PreparedData | None = field(default=None)

    @property
    def data(self) -> PreparedData:
        """The examples to train on."""
        if self._read is None:
            self._read = self.prepare(self.recipe.data)
        return self._read

    def prepare(self, spec: DatasetSpec) -> PreparedData:
        """Read a data set as the engine does."""
        tokenizer = AutoTokenizer.from_pretrained(self.recipe.model.source)
        return prepare(spec, self.recipe.objective, tokenizer, seed=self.recipe.seed)

    # The plain loop --------------------------------------------------------------------------------------------------

    def load(self, adapter: str, precision: str, attention: str = "sdpa") -> PeftModel:
        """Load base and adapter with nothing of ours."""
        options = {}
        if self.recipe.model.quantization == "nf4":
            options["quantization_config"] = quantization_config("nf4", precision)
        base = AutoModelForCausalLM.from_pretrained(
            self.recipe.model.source,
            dtype=DTYPES[precision],
            attn_implementation=attention,
            device_map={"": self.device},
            **options,
        )
        base.config.use_cache = False
        return PeftModel.from_pretrained(base, adapter, is_trainable=True)

    def lower(self, precision: str) -> torch.autocast:
        """Return the context in which products are taken in that precision."""
        return torch.autocast(self.device, dtype=torch.bfloat16, enabled=precision == "bf16")

    def train_plainly(self, precision: str, attention: str = "sdpa") -> Trained:
        """Train by transformers' forward, peft's layers, autograd and torch's AdamW; bf16 by autocast."""
        spec, rows = self.recipe.optim, self.data.train
        model = self.load(self.recipe.model.adapter, precision, attention).train()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        assert {parameter.dtype for parameter in trained} == {torch.float32}
        optimizer = torch.optim.AdamW(
            trained, betas=(spec.beta1, spec.beta2), eps=spec.epsilon, weight_decay=spec.weight_decay
        )
        order = StepOrder(len(rows), spec.batch_size, self.recipe.seed)
        losses = []
        for step in range(spec.max_steps):
            inputs = self.collate([rows[i] for i in order.indices(step)])
            with self.lower(precision):
                loss = model(**inputs).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, spec.max_grad_norm)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(spec, step, spec.max_steps)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return self.measure(model, losses, precision)

    def collate(self, rows: list[Example]) -> dict[str, torch.Tensor]:
        """Pad on the right; labels where a token is trained."""
        ids = [torch.from_numpy(row.token_ids).long() for row in rows]
        labels = [
            torch.where(torch.from_numpy(row.trained), one, -100) for row, one in zip(rows, ids, strict=True)
        ]
        mask = [torch.ones_like(one) for one in ids]
        padded = {
            "input_ids": pad_sequence(ids, batch_first=True),
            "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
            "attention_mask": pad_sequence(mask, batch_first=True),
        }
        return {name: tensor.to(self.device) for name, tensor in padded.items()}

    @torch.no_grad()
    def measure(self, model: PeftModel, losses: list[float], precision: str) -> Trained:
        """Let `model` write every trained token of the held-out rows, each after the right ones."""
        model.eval()
        rows, right = self.prepare(self.held_out).train, []
        for start in range(0, len(rows), 32):
            inputs = self.collate(rows[start : start + 32])
            labels = inputs.pop("labels")[:, 1:]
            with self.lower(precision):
                written = model(**inputs).logits[:, :-1].argmax(-1)
            for row, label in zip(written, labels, strict=True):
                right.append((row == label)[label != -100].cpu())
        return Trained(
            losses,
            tokens_right=torch.cat(right).float().mean().item(),
            rows_right=sum(bool(row.all()) for row in right) / len(right),
        )

    # The engine ------------------------------------------------------------------------------------------------------

    def train_by_engine(
        self, machine: MachineFacts, changes: Mapping[str, Any] | None = None
    ) -> tuple[Trained, Ran]:
        """Train as the product does; the result is loaded and measured with nothing of ours."""
        chosen = change_recipe(self.recipe, dict(changes or {}))
        folder, events = create_run(self.work / "runs", chosen), []
        ran = Ran(folder, engine.run(chosen, machine, folder, events.append, lambda: False), events)
        assert ran.record.state == "finished", ran.log
        assert not ran.of(KernelFellBack) and not ran.of(MemoryFreed)
        assert "run.decoder" in {words.id for words in ran.of(RunPlanned)[0].swaps}
        precision = chosen.model.precision
        model = self.load(str(folder.path / ran.record.artifact), precision)
        return self.measure(model, ran.losses, precision), ran


def make_case(work: Path, recipe: Recipe, held_out: DatasetSpec, device: str = "cuda") -> Case:
    """Save the adapter from which every stack of a case goes on, and return the case."""
    torch.manual_seed(recipe.seed)
    base = AutoModelForCausalLM.from_pretrained(recipe.model.source, dtype=torch.float32)
    adapter = work / "start"
    adapt(base, recipe.adapter).save_pretrained(adapter)
    recipe = change_recipe(recipe, {"model.adapter": str(adapter), "model.precision": "bf16"})
    return Case(recipe, held_out, work, device)


def make_demo_case(work: Path, device: str = "cuda") -> Case:
    """The demo as it is bundled, for 200 steps."""
    recipe = from_json(Recipe, json.loads((ASSETS / "recipes" / "demo.json").read_text(encoding="utf-8")))
    model, data = str(ASSETS / "demo_model"), ASSETS / "demo_data"
    changes = {"model.source": model, "data.source": str(data / "train.jsonl"), "optim.max_steps": 200}
    held_out = DatasetSpec(source=str(data / "heldout.jsonl"), max_length=512)
    return make_case(work, change_recipe(recipe, changes), held_out, device)


def write_letters(path: Path, rows: int, letters: int, seed: int) -> Path:
    """Write texts in which the two letters before tell the next one with CERTAINTY; else it is any."""
    table = np.random.default_rng(0).integers(len(LETTERS), size=(len(LETTERS), len(LETTERS)))
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(rows):
        drawn = rng.integers(len(LETTERS), size=letters)
        certain = rng.random(letters) < CERTAINTY
        for i in range(2, letters):
            if certain[i]:
                drawn[i] = table[drawn[i - 2], drawn[i - 1]]
        texts.append({"text": "".join(LETTERS[i] for i in drawn)})
    return write_jsonl(path, texts)


def make_letters_case(
    work: Path,
    quantization: str,
    steps: int,
    device: str = "cuda",
    rows: int = 8,
    learning_rate: float = 1e-3,
    **shape: Any,
) -> Case:
    """A random model of 100 million parameters, unless `shape` says otherwise, that is to learn a little language."""
    shape = {
        "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12,
        "num_key_value_heads": 4, "vocab_size": 8192, "max_position_embeddings": 512,
    } | shape  # fmt: skip
    model = make_model(work / "model", initializer_range=shape["hidden_size"] ** -0.5, **shape)
    # Rounded, so that all precisions begin with the same numbers. The head is frozen: with rows this long what comes
    # before it, whose length the last norm sets, can be as sure of a word as a trained model is.
    weights = {name: weight.bfloat16() for name, weight in load_file(model / "model.safetensors").items()}
    weights["lm_head.weight"] *= 3
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    recipe = Recipe(
        model=ModelChoice(source=str(model), quantization=quantization),
        data=DatasetSpec(
            source=str(write_letters(work / "train.jsonl", rows * steps, 255, 1)),
            max_length=256,
            validation_share=0.0,
        ),
        optim=OptimSpec(learning_rate=learning_rate, max_steps=steps, batch_size=rows, weight_decay=0.0),
        run=RunSpec(trial=False),
    )
    held_out = DatasetSpec(source=str(write_letters(work / "held.jsonl", 64, 255, 2)), max_length=256)
    return make_case(work, recipe, held_out, device)


# What must hold ------------------------------------------------------------------------------------------------------


def compare(
    case: Case, machine: MachineFacts, tell: Callable[[str, Any], None], *, twins: bool = True
) -> Trained:
    """Train by every stack, compare each with what is right, and return that; `tell` takes the numbers to be kept."""
    exact, plain = case.train_plainly("fp32"), case.train_plainly("bf16")
    ours = {"triton": case.train_by_engine(machine)[0]}
    if twins:
        ours["pytorch"] = case.train_by_engine(machine, {"run.kernels": "pytorch"})[0]
    noise, said = distance(plain, exact), {}
    said["transformers bf16 from fp32"] = f"{noise:.5f}"
    for name, one in ours.items():
        said[f"{name} bf16 from fp32"] = f"{distance(one, exact):.5f}"
        said[f"{name} bf16 from transformers bf16"] = f"{distance(one, plain):.5f}"
    for name, one in {"transformers fp32": exact, "transformers": plain, **ours}.items():
        said[f"{name} last loss, right tokens and rows"] = (
            f"{one.curve[-1]:.4f} {one.tokens_right:.4f} {one.rows_right:.4f}"
        )
    print(json.dumps(said, indent=1))
    for name, value in said.items():
        tell(name, value)
    worst = abs(plain.tokens_right - exact.tokens_right)
    for name, one in ours.items():
        assert len(one.losses) == case.recipe.optim.max_steps
        # Where 16 bits alone take transformers further from what is right, as far is no fault of ours.
        nearest = min(distance(one, exact), distance(one, plain))
        assert nearest <= max(CURVE_SHARE, NOISE * noise), name
        assert one.tokens_right == pytest.approx(exact.tokens_right, abs=max(ACCURACY, NOISE * worst)), name
    return exact


def test_the_demo(machine, tmp_path, record_property):
    """200 steps; by then the model answers nearly every order exactly."""
    case = make_demo_case(tmp_path)
    exact = compare(case, machine, record_property)
    other = case.train_plainly("bf16", "eager")
    record_property("transformers bf16 with another attention from fp32", f"{distance(other, exact):.5f}")
    assert exact.rows_right >= 0.95


def test_the_demo_in_float32(machine, tmp_path, record_property):
    """Without 16-bit rounding the curves are one (0.0002 % apart on a processor), and so are the answers."""
    case = make_demo_case(tmp_path)
    exact, (ours, _) = case.train_plainly("fp32"), case.train_by_engine(machine, {"model.precision": "fp32"})
    record_property("triton fp32 from fp32", f"{distance(ours, exact):.6f}")
    assert distance(ours, exact) <= CURVE_SHARE / 5
    assert ours.rows_right == pytest.approx(exact.rows_right, abs=0.01)


def test_a_model_of_100_million_parameters(machine, tmp_path, record_property):
    case = make_letters_case(tmp_path, "none", steps=200)
    exact = compare(case, machine, record_property)
    assert exact.curve[-1] < exact.curve[0] / 2 and exact.tokens_right > 0.3, "it learned"


def test_a_model_of_100_million_parameters_in_4_bits(machine, tmp_path, record_property):
    case = make_letters_case(tmp_path, "nf4", steps=200, learning_rate=5e-4)
    exact = compare(case, machine, record_property, twins=False)
    assert exact.curve[-1] < exact.curve[0] / 2, "it learned"

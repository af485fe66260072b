"""Every shape in which pairs and labelled answers are published takes a step, or says truly why not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from studio.core.recipe import DatasetSpec, ModelChoice, OptimSpec, PreferenceSpec, Recipe
from studio.data.prepare import prepare
from studio.engine.objectives import get_objective
from studio.engine.reference_logprobs import add_reference
from studio.engine.trainer import Hooks, Trainer
from tests.conftest import make_tokenizer
from tests.engine.test_objectives import make_step
from tests.models.decoder.models import make_model

FIXTURES = Path(__file__).resolve().parents[1] / "data" / "fixtures"


def user(words):
    return {"role": "user", "content": words}


def said(words):
    return {"role": "assistant", "content": words}


SHAPES = {
    "hh-rlhf": [
        {"chosen": f"\n\nHuman: what is {i}?\n\nAssistant: A number.\n\nHuman: Sure?\n\nAssistant: Yes, {i} is.",
         "rejected": f"\n\nHuman: what is {i}?\n\nAssistant: A number.\n\nHuman: Sure?\n\nAssistant: No."}
        for i in range(8)
    ],
    "ultrafeedback_binarized": [
        {"prompt": f"Name {i} things", "prompt_id": f"{i:064x}", "messages": [user(f"Name {i} things"), said("Fine.")],
         "chosen": [user(f"Name {i} things"), said("Fine.")], "rejected": [user(f"Name {i} things"), said("No")],
         "score_chosen": 8.0, "score_rejected": 5.5}
        for i in range(8)
    ],
    "orca_dpo_pairs": [
        {"system": "You help.", "question": f"What is {i} + 1?", "chosen": f"It is {i + 1}.", "rejected": "Five."}
        for i in range(8)
    ],
    "dpo-mix": [
        {"dataset": "mix", "chosen": [user(f"Tell {i}"), said("A.")], "rejected": [user(f"Tell {i}"), said("Nay.")],
         "chosen_rating": 4.5, "rejected_rating": 1.0}
        for i in range(8)
    ],
    "LLaMA-Factory ranking": [
        {"conversations": [{"from": "human", "value": f"Say {i}"}], "chosen": {"from": "gpt", "value": f"I say {i}."},
         "rejected": {"from": "gpt", "value": "I say nothing."}}
        for i in range(8)
    ],
    "trl explicit": [
        {"prompt": [user(f"Sky {i}?")], "chosen": [said("It is blue.")], "rejected": [said("It is green.")]}
        for i in range(8)
    ],
    "scored answers": [
        {"instruction": f"Describe {i}",
         "completions": [{"response": f"{i} it is.", "overall_score": 8.0}, {"response": "It.", "overall_score": 2.0},
                         {"response": "A thing.", "overall_score": 5.0}]}
        for i in range(8)
    ],
    "arena": [
        {"prompt": f"Which {i}?", "response_a": "This one, of course.", "response_b": "No idea.",
         "winner": "model_a" if i % 2 else "model_b"}
        for i in range(8)
    ],
    "kto-mix-14k": [
        {"prompt": [user(f"Do {i}")], "completion": [said("Done." if i % 2 else "I will not.")], "label": bool(i % 2)}
        for i in range(8)
    ],
    "trl unpaired": [
        {"prompt": f"The sky {i} is", "completion": " blue." if i % 3 else " made of cheese.", "label": bool(i % 3)}
        for i in range(8)
    ],
    "LLaMA-Factory kto": [
        {"messages": [user(f"Ask {i}"), said("Well." if i % 2 else "Go away.")], "label": bool(i % 2)} for i in range(8)
    ],
    "thumbs": [
        {"question": f"How {i}?", "answer": "So." if i % 2 else "Never mind.", "feedback": "👍" if i % 2 else "👎"}
        for i in range(8)
    ],
}  # fmt: skip
FILES = [
    *sorted(FIXTURES.glob("formats/preference*.jsonl")),
    *sorted(FIXTURES.glob("formats/kto*.jsonl")),
    FIXTURES / "csv" / "preference.csv",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def take_step(file: Path, tokenizer, folder: Path) -> tuple[str, float, int, int]:
    """Return the objective that `auto` chose, the loss of a step over all rows, and the rows used and read."""
    spec = DatasetSpec(source=str(file), validation_share=0.0)
    data = prepare(spec, "auto", tokenizer, seed=1)
    recipe = Recipe(
        model=ModelChoice(source="m"), data=spec, optim=OptimSpec(batch_size=len(data.train), max_steps=1)
    )
    torch.manual_seed(0)
    objective = get_objective(data.method, PreferenceSpec()).fit(data.train)
    model = make_model("llama", vocab_size=len(tokenizer))
    hooks = Hooks(emit=lambda event: None, should_stop=lambda: False, save=lambda state: 0)
    trainer = Trainer(
        model,
        make_step(objective, True, model),
        data.train,
        [],
        recipe,
        "adamw",
        "fp32",
        torch.device("cpu"),
        hooks,
    )
    add_reference(trainer, folder, "data", lambda: None)
    trainer.train()
    return data.method, trainer.state.last_loss, data.facts.rows_used, data.facts.rows_read


@pytest.mark.parametrize("name", SHAPES)
def test_a_published_shape_takes_a_step(name, tokenizer, jsonl, tmp_path):
    method, loss, used, read = take_step(jsonl(tmp_path / "rows.jsonl", SHAPES[name]), tokenizer, tmp_path)
    assert method == ("dpo" if name in [*SHAPES][: [*SHAPES].index("kto-mix-14k")] else "kto")
    assert used >= 0.9 * read and read == 8
    if method == "dpo":
        assert loss == pytest.approx(0.6931, abs=1e-4)
    else:
        assert 0.3 < loss < 0.8


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_file_of_the_tests_takes_a_step(file, tokenizer, tmp_path):
    method, loss, used, read = take_step(file, tokenizer, tmp_path)
    assert (method == "dpo") == ("preference" in file.name) and used == read and loss > 0.3

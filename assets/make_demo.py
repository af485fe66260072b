"""Make the demo: `python assets/make_demo.py [--out DIR] [--steps N]` writes demo_data/ and demo_model/ under DIR.

The data takes a second and is the same on every machine. The model is pretrained from random weights on text
that `demo_text.make_document` writes.
"""

import argparse
import json
import random
import time
from pathlib import Path

from demo_text import make_document, make_skill

SEED = 20260
TRAIN_ROWS, HELDOUT_ROWS = 400, 120
VOCAB, ROW_TOKENS, BATCH_ROWS, STEPS = 2048, 256, 8, 4000
PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

CARD = """---
license: apache-2.0
language: en
library_name: transformers
---
# Demo base model

A Llama-architecture language model with {parameters:.2f} million parameters, made for the demo of Finetune Studio.
It talks a little, answers questions about short sentences and copies words. It knows nothing about the real world.

- Made by `assets/make_demo.py` from random weights, seed {seed}, on text that `assets/demo_text.py` writes.
- {steps} steps, {tokens:.1f} million tokens, two processor cores, {minutes:.0f} minutes.
- Loss over the last 50 steps, on text never seen before: {loss:.3f} nats a token.
- Byte-level BPE of 2048 tokens, context of 512 tokens, bf16 safetensors, chat template with system, user and assistant.
- It never saw the records that `assets/demo_data` teaches.

Licence: Apache-2.0.
"""


def make_data(folder: Path) -> None:
    """Write train.jsonl and heldout.jsonl; every order is distinct, so no held-out prompt is in training."""
    rows = make_skill(random.Random(SEED), TRAIN_ROWS + HELDOUT_ROWS)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("train.jsonl", rows[:TRAIN_ROWS]), ("heldout.jsonl", rows[TRAIN_ROWS:])):
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in part)
        (folder / name).write_bytes(text.encode("utf-8"))


def write_text(rng: random.Random) -> list[tuple[str, bool]]:
    """One document as the model reads it, in pieces; True marks what it learns to write (not the user's words)."""
    document = make_document(rng)
    if isinstance(document, str):
        return [(document + END + "\n", True)]
    pieces = []
    for turn in document:
        answer = turn["role"] == "assistant"
        pieces += [(f"{START}{turn['role']}\n", False), (f"{turn['content']}{END}\n", answer)]
    return pieces


def make_tokenizer():
    """A byte-level BPE trained on the corpus: every UTF-8 text can be encoded and comes back unchanged."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    rng = random.Random(SEED + 1)
    texts = (piece for _ in range(30_000) for piece, _ in write_text(rng))
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        chat_template=TEMPLATE,
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )


def fill_row(rng: random.Random, tokenizer) -> tuple[list[int], list[int]]:
    """Ids and labels (-100: no loss) of ROW_TOKENS tokens: whole documents, the last one cut."""
    ids: list[int] = []
    labels: list[int] = []
    while len(ids) < ROW_TOKENS:
        for piece, learned in write_text(rng):
            tokens = tokenizer.encode(piece, add_special_tokens=False)
            ids += tokens
            labels += tokens if learned else [-100] * len(tokens)
    return ids[:ROW_TOKENS], labels[:ROW_TOKENS]


def make_model(tokenizer):
    """The untrained model: about 3.9 million parameters, embeddings tied."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    ids = {
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        **ids,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(do_sample=False, max_new_tokens=64, **ids)
    return model


def pretrain(model, tokenizer, steps: int, save) -> float:
    """Train for `steps` steps of BATCH_ROWS x ROW_TOKENS tokens; returns the mean loss (nats a token) of the last 50.

    bf16 autocast (2.4 times faster than fp32 where the processor has AMX), AdamW, cosine to a tenth.
    """
    import math

    import torch

    rng = random.Random(SEED + 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.05)
    warm_steps, losses, start_s = min(100, steps), [], time.time()
    model.train()
    for step in range(steps):
        rows = torch.tensor([fill_row(rng, tokenizer) for _ in range(BATCH_ROWS)])  # [rows, ids or labels, tokens]
        decay = 0.55 + 0.45 * math.cos(math.pi * step / steps)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min((step + 1) / warm_steps, 1.0) * decay
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=rows[:, 0], labels=rows[:, 1]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if (step + 1) % 50 == 0:
            rate = (step + 1) * BATCH_ROWS * ROW_TOKENS / (time.time() - start_s)
            print(f"step {step + 1} loss {sum(losses[-50:]) / 50:.4f} {rate:.0f} tokens/s", flush=True)
        if (step + 1) % 400 == 0:
            save()
    model.eval()
    return sum(losses[-50:]) / len(losses[-50:])


def save_model(model, tokenizer, folder: Path) -> None:
    """Write the model in bf16 safetensors, its tokenizer and its chat template."""
    import copy

    import torch

    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_card(model, folder: Path, steps: int, loss: float, seconds: float) -> None:
    """Write the model card with what this run measured."""
    tokens = steps * BATCH_ROWS * ROW_TOKENS
    card = CARD.format(
        parameters=model.num_parameters() / 1e6,
        seed=SEED,
        steps=steps,
        tokens=tokens / 1e6,
        loss=loss,
        minutes=seconds / 60,
    )
    (folder / "README.md").write_bytes(card.encode("utf-8"))


def main() -> None:
    """Parse the command line and make both folders."""
    parser = argparse.ArgumentParser(description="Make the demo data and the demo model.")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent, metavar="DIR")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help="0 writes only the data")
    options = parser.parse_args()
    make_data(options.out / "demo_data")
    if options.steps < 1:
        return
    import torch

    torch.manual_seed(SEED)
    folder = options.out / "demo_model"
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    start_s = time.time()
    loss = pretrain(model, tokenizer, options.steps, lambda: save_model(model, tokenizer, folder))
    save_model(model, tokenizer, folder)
    write_card(model, folder, options.steps, loss, time.time() - start_s)


if __name__ == "__main__":
    main()

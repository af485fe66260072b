"""Make the demo: `python assets/make_demo.py [--out DIR] [--steps N]` writes demo_data/ and demo_model/ under DIR.

The data takes a second and is the same on every machine. The model is pretrained from random weights on text
that `demo_text.make_document` writes. The committed one took 6.2 minutes on an NVIDIA H200 that six others like it
were trained on at once (torch 2.11, transformers 5.17).

Of seven bases (vocabularies of 768 to 2048, 6000 to 12,000 steps, 4 or 6 layers) it answers best what no row says:
after the demo's recipe (rank 8, 150 steps, 2 seeds) 100 % of the held-out rows, none of whose names is trained, 98 % of
orders with real names that no text of the base held, 93 % with names of two words, 78 % in other wordings. A tokenizer
that keeps a space apart from every word, not from capitals alone, has 98 %, 84 % and 73 %.
"""

import argparse
import json
import random
import re
import time
from pathlib import Path

from demo_text import KNOWN, invent, make_document, make_skill

SEED = 20260
TRAIN_ROWS, HELDOUT_ROWS = 400, 120
VOCAB, WIDTH, ROW_TOKENS, BATCH_ROWS, STEPS = 1024, 256, 192, 24, 8000
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
- {steps} steps, {tokens:.1f} million tokens, {minutes:.1f} minutes on {device}.
- Loss over the last 50 steps, on text never seen before: {loss:.3f} nats a token.
- Byte-level BPE of {vocab} tokens, context of 512 tokens, bf16 safetensors, template with system, user, assistant.
- It never saw the records that `assets/demo_data` teaches.

Licence: Apache-2.0.
"""


def make_data(folder: Path) -> None:
    """Write train.jsonl and heldout.jsonl; no name and no city of a held-out row is in training."""
    rng = random.Random(SEED)
    parts = {
        "train.jsonl": make_skill(rng, TRAIN_ROWS),
        "heldout.jsonl": make_skill(rng, HELDOUT_ROWS, spare=True),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
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
    """A byte-level BPE trained on the corpus: every UTF-8 text can be encoded and comes back unchanged.

    No listed name is a token of its own, and no token joins a space and a capital: a name that nobody has listed is
    read and written in the same pieces as those of the corpus, after a space as after a quote.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    rng = random.Random(SEED + 1)

    def hide(word: re.Match) -> str:
        return invent(rng).capitalize() if word[0] in KNOWN else word[0]

    pieces = (re.sub(r"[A-Z]\w+", hide, piece) for _ in range(30_000) for piece, _ in write_text(rng))
    texts = (part for piece in pieces for part in re.split(r" (?=[A-ZÀ-Þ])", piece))
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
    core = tokenizer.backend_tokenizer
    ids: list[int] = []
    labels: list[int] = []
    while len(ids) < ROW_TOKENS:
        for piece, learned in write_text(rng):
            tokens = core.encode(piece, add_special_tokens=False).ids
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
        hidden_size=WIDTH,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=WIDTH**-0.5,
        **ids,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(do_sample=False, max_new_tokens=96, **ids)
    start_as_copier(model, tokenizer)
    return model


def start_as_copier(model, tokenizer) -> None:
    """Start weights that favour copying, so that a few million tokens are enough to learn it.

    Each attention layer passes a value on unchanged (output x value = 0.16 identity + noise), the idea of "Mimetic
    Initialization of Self-Attention Layers" (Trockman and Kolter, 2023); tokens that spell the same word but for
    case, leading space or plural s start close together. One run each, 2500 steps of 32 x 256 tokens, losses
    0.40 and 0.39: LoRA then reached 100 % on the held-out rows with both, 2 % without (and std 0.02, eight heads).
    """
    import torch

    words: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for layer in model.model.layers:
            basis = 0.4 * torch.nn.init.orthogonal_(torch.empty(WIDTH, WIDTH))
            layer.self_attn.v_proj.weight.copy_(basis + 0.02 * torch.randn(WIDTH, WIDTH))
            layer.self_attn.o_proj.weight.copy_(basis.T + 0.02 * torch.randn(WIDTH, WIDTH))
        for token, row in enumerate(model.model.embed_tokens.weight):
            word = tokenizer.decode([token]).strip().lower()
            word = word[:-1] if len(word) > 3 and word.endswith("s") else word
            shared = torch.randn(WIDTH)
            if word.isalpha():
                shared = words.setdefault(word, shared)
            row.copy_(WIDTH**-0.5 * (0.8 * shared + 0.6 * torch.randn(WIDTH)))


def pretrain(model, tokenizer, steps: int) -> float:
    """Train for `steps` steps of BATCH_ROWS x ROW_TOKENS tokens; returns the mean loss (nats a token) of the last 50.

    bf16 autocast (2.4 times faster than fp32 on a processor with AMX), AdamW, cosine to a tenth; CUDA if there is.
    """
    import math

    import torch

    rng = random.Random(SEED + 2)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.05)
    warm_steps, losses, start_s = min(100, steps), [], time.time()
    for step in range(steps):
        # [BATCH_ROWS, 2 (ids, labels), ROW_TOKENS]
        rows = torch.tensor([fill_row(rng, tokenizer) for _ in range(BATCH_ROWS)], device=device)
        decay = 0.55 + 0.45 * math.cos(math.pi * step / steps)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min((step + 1) / warm_steps, 1.0) * decay
        with torch.autocast(device, torch.bfloat16):
            loss = model(input_ids=rows[:, 0], labels=rows[:, 1]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if (step + 1) % 25 == 0:
            rate = (step + 1) * BATCH_ROWS * ROW_TOKENS / (time.time() - start_s)
            print(f"step {step + 1} loss {sum(losses[-50:]) / 50:.4f} {rate:.0f} tokens/s", flush=True)
    model.to("cpu").eval()
    return sum(losses[-50:]) / len(losses[-50:])


def save_model(model, tokenizer, folder: Path) -> None:
    """Write the model in bf16 safetensors, its tokenizer and its chat template."""
    import copy

    import torch

    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_card(folder: Path, model, steps: int, loss: float, seconds: float, device: str) -> None:
    """Write the model card with what this run measured."""
    card = CARD.format(
        parameters=model.num_parameters() / 1e6,
        seed=SEED,
        vocab=VOCAB,
        steps=steps,
        tokens=steps * BATCH_ROWS * ROW_TOKENS / 1e6,
        loss=loss,
        minutes=seconds / 60,
        device=device,
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
    loss = pretrain(model, tokenizer, options.steps)
    save_model(model, tokenizer, folder)
    device = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"{torch.get_num_threads()} processor threads"
    )
    write_card(folder, model, options.steps, loss, time.time() - start_s, device)


if __name__ == "__main__":
    main()

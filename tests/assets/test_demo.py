"""The bundled demo: its data can be made again byte for byte, and its model is what the model card says."""

import importlib
import json
import random
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

ASSETS = Path(__file__).resolve().parents[2] / "assets"
MODEL, DATA = ASSETS / "demo_model", ASSETS / "demo_data"


@pytest.fixture
def make_demo(monkeypatch):
    monkeypatch.syspath_prepend(str(ASSETS))
    yield importlib.import_module("make_demo")
    for name in ("make_demo", "demo_text"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODEL, trust_remote_code=False)


@pytest.fixture(scope="module")
def model():
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        MODEL, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
    ).eval()


def read_pairs(name: str) -> list[tuple[str, str]]:
    rows = [json.loads(line)["messages"] for line in (DATA / name).read_text(encoding="utf-8").splitlines()]
    assert all([turn["role"] for turn in row] == ["user", "assistant"] for row in rows)
    return [(row[0]["content"], row[1]["content"]) for row in rows]


def test_the_committed_data_is_what_the_script_makes(make_demo, tmp_path):
    make_demo.make_data(tmp_path)
    for name in ("train.jsonl", "heldout.jsonl"):
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes()


def test_heldout_rows_are_new_and_no_constant_answer_scores():
    train, heldout = read_pairs("train.jsonl"), read_pairs("heldout.jsonl")
    assert 300 <= len(train) <= 500 and len(heldout) >= 100
    assert not {prompt for prompt, _ in train} & {prompt for prompt, _ in heldout}
    assert not {answer for _, answer in train} & {answer for _, answer in heldout}
    assert len({prompt for prompt, _ in heldout}) == len(heldout)
    most_common = Counter(answer for _, answer in heldout).most_common(1)[0][1]
    assert most_common / len(heldout) < 0.1


def test_no_name_and_no_city_of_a_heldout_row_is_trained(make_demo):
    from demo_text import KNOWN

    def read_values(name: str) -> set[str]:
        fields = [json.loads(answer) for _, answer in read_pairs(name)]
        return {field[key] for field in fields for key in ("name", "city")}

    def list_words(values: set[str]) -> set[str]:
        return {word for value in values for word in value.split()}

    train, heldout = read_values("train.jsonl"), read_values("heldout.jsonl")
    assert not train & heldout and not list_words(train) & list_words(heldout) & KNOWN
    assert len(list_words(train)) > 300, "so many that they cannot be learned by heart"


def test_every_answer_is_a_record_of_what_its_prompt_says(make_demo):
    from demo_text import NUMBERS

    for prompt, answer in read_pairs("train.jsonl") + read_pairs("heldout.jsonl"):
        fields = json.loads(answer)
        assert list(fields) == ["name", "count", "color", "item", "city"]
        said = [
            fields["name"],
            NUMBERS[fields["count"] - 2] if not re.search(r"\d", prompt) else str(fields["count"]),
            fields["color"],
            fields["item"] + "s",
            fields["city"],
        ]
        assert all(word.lower() in prompt.lower() for word in said)


def test_the_base_never_reads_a_record(make_demo):
    rng = random.Random(4)
    corpus = [piece for _ in range(10_000) for piece, _ in make_demo.write_text(rng)]
    records = re.compile(r'[{]"\w|"\w+": ["\d]')  # an opened record, or a key with its value
    assert records.search(read_pairs("train.jsonl")[0][1])
    assert not [piece for piece in corpus if records.search(piece)]


def test_the_model_has_the_promised_size_and_names_no_path(model):
    assert 3e6 <= model.num_parameters() <= 7.5e6
    assert sum(file.stat().st_size for file in MODEL.iterdir()) <= 16 * 2**20
    assert not [file.name for file in MODEL.iterdir() if file.suffix in (".bin", ".pt", ".pkl", ".py")]
    assert model.config.max_position_embeddings == 512
    for file in MODEL.glob("*.json"):
        text = file.read_text(encoding="utf-8")
        assert "_name_or_path" not in text and str(ASSETS.parent) not in text and "/tmp" not in text
    assert "Apache-2.0" in (MODEL / "README.md").read_text(encoding="utf-8")


def test_any_text_comes_back_from_the_tokenizer(tokenizer):
    rng = random.Random(5)
    texts = [
        "",
        " two  spaces ",
        "tab\tand\r\nlines\n",
        "你好，世界",
        "👩‍👩‍👧 🚀",
        "e\u0301 ﷽ \u200b",
        "{'a': [1.5]}",
    ]
    texts += [
        "".join(
            chr(rng.choice((rng.randrange(32, 0xD800), rng.randrange(0x10000, 0x20000)))) for _ in range(30)
        )
    ]
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
        assert all(0 <= token < len(tokenizer) for token in ids)


def test_a_word_is_read_in_the_same_pieces_after_a_space_and_after_a_quote(tokenizer):
    """Else a name that is in no list would be heard in one spelling and had to be written in another."""
    for word in ("Milena", "Nashville", "Oslo", "Mia", "Kwame", "José"):
        spaced, quoted = tokenizer.tokenize(f" {word}"), tokenizer.tokenize(f'"{word}')
        assert spaced[1:] == quoted[1:] and len(spaced) > 1


def test_the_template_renders_each_prefix_of_a_conversation_unchanged(tokenizer):
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": "你好 🚀"},
        {"role": "user", "content": "Thanks."},
        {"role": "assistant", "content": "You are welcome."},
    ]
    whole = tokenizer.apply_chat_template(turns, tokenize=False)
    for count in range(1, len(turns) + 1):
        prefix = tokenizer.apply_chat_template(turns[:count], tokenize=False)
        assert whole.startswith(prefix) and prefix.endswith("<|im_end|>\n")
        whole_ids, prefix_ids = tokenizer.encode(whole), tokenizer.encode(prefix)
        assert whole_ids[: len(prefix_ids)] == prefix_ids
    prompt = tokenizer.apply_chat_template(turns[:4], tokenize=False, add_generation_prompt=True)
    assert prompt.endswith("<|im_start|>assistant\n") and whole.startswith(prompt)
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.pad_token_id != tokenizer.eos_token_id


def test_the_base_answers_politely_the_same_each_time_and_lacks_the_skill(model, tokenizer):
    def answer(text: str) -> str:
        turns = [{"role": "user", "content": text}]
        prompt = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        batch = tokenizer(prompt, return_tensors="pt")
        out = model.generate(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
        return tokenizer.decode(out[0, batch.input_ids.shape[1] :], skip_special_tokens=True).strip()

    assert answer("Hello!") == answer("Hello!") == "Hello! How can I help you?"
    assert answer("Please send two green lamps to Oslo for Mia. Who is it?") == "Mia."
    heldout = read_pairs("heldout.jsonl")[:8]
    assert not any(answer(prompt) == wanted for prompt, wanted in heldout)

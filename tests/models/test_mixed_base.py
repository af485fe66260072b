"""A base in 4 bits that is fitted to rows: how near it is to its 16-bit model, in which memory, and what is stored."""

import json
from pathlib import Path

import pytest
import torch
from bitsandbytes.nn import Linear4bit
from transformers import AutoModelForCausalLM, AutoTokenizer

from studio.core.errors import StudioError
from studio.models.catalog import inspect_model
from studio.models.load import load_model
from studio.models.mixed_base import BaseWish, put_base, settle_base
from studio.planning.memory_estimate import loaded_bytes
from studio.planning.run_plan import plan
from tests.machine.facts import make_machine, make_recipe

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "assets/demo_model"
DATA = ROOT / "assets/demo_data"
ROWS = 48


def read_rows(name, count):
    """Return token ids of conversations of the demo, from all over the file."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    chats = [json.loads(lines[i * len(lines) // count])["messages"] for i in range(count)]
    return [tokenizer(tokenizer.apply_chat_template(chat, tokenize=False))["input_ids"] for chat in chats]


def load_packed(folder=DEMO, dtype="bf16"):
    return load_model(inspect_model(str(folder)), device="cpu", dtype=dtype, quantization="mixed").model


def settle(model, path, rows, folder=DEMO, more_bits=0.0, may_make=True, dtype=torch.bfloat16):
    wish = BaseWish(path=path, rows=rows, more_bits=more_bits, may_make=may_make)
    return settle_base(model, str(folder), dtype, wish)


def count_held_bytes(model):
    """Return what the weights take, scales included."""
    held = 0
    for parameter in model.parameters():
        held += parameter.nbytes
        if state := getattr(parameter, "quant_state", None):
            held += state.absmax.nbytes + state.state2.absmax.nbytes
    return held


@torch.no_grad()
def measure_kl(exact, model, rows):
    """Return the mean KL a token from `exact` to `model`, in float64."""
    total = count = 0
    for row in rows:
        ids = torch.tensor([row])
        wanted, found = (one(ids).logits[0].double().log_softmax(-1) for one in (exact, model))
        total, count = total + float((wanted.exp() * (wanted - found)).sum()), count + len(row)
    return total / count


@pytest.fixture(scope="module")
def rows():
    return read_rows("train.jsonl", ROWS)


@pytest.fixture(scope="module")
def made(tmp_path_factory, rows):
    """A function `made(more_bits) -> (model, MixedBase, its file)` that fits the demo once."""
    known = {}

    def get(more_bits=0.0):
        if more_bits not in known:
            model, path = load_packed(), tmp_path_factory.mktemp("base") / "base.safetensors"
            known[more_bits] = model, settle(model, path, rows, more_bits=more_bits), path
        return known[more_bits]

    return get


@pytest.mark.computing
@pytest.mark.parametrize("more_bits", [0.0, 0.25])
def test_the_demo_is_nearer_to_its_16_bits_in_the_same_memory(made, more_bits):
    model, base, _ = made(more_bits)
    uniform = load_packed()
    exact = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.bfloat16).eval()
    held_out = read_rows("heldout.jsonl", 40)
    ours, theirs = (measure_kl(exact, one, held_out) for one in (model, uniform))
    assert ours <= 0.7 * theirs
    assert base.kl <= 0.7 * base.uniform_kl
    gained = count_held_bytes(model) - count_held_bytes(uniform)
    assert gained == base.size_bytes - base.uniform_bytes
    assert gained <= more_bits * base.uniform_bytes and (gained == 0) == (more_bits == 0)


@pytest.mark.computing
def test_room_goes_to_what_is_felt_most(made):
    plain, base = made()[1], made(0.25)[1]
    assert not plain.kept and plain.fitted == plain.matrices == 28
    assert base.kept and base.kl < plain.kl
    assert base.fitted + len(base.kept) == 28
    inside = [type(made(0.25)[0].get_submodule(name)) for name in base.kept]
    assert inside == [torch.nn.Linear] * len(base.kept)


@pytest.mark.computing
@pytest.mark.parametrize("more_bits", [0.0, 0.25])
def test_the_planner_counts_what_it_may_take(made, more_bits):
    model, base, _ = made(more_bits)
    changes = {"model.quantization": "mixed", "model.more_bits": more_bits, "model.precision": "bf16"}
    recipe = make_recipe(changes)
    facts = inspect_model(str(DEMO))
    chosen = plan(make_machine(), recipe, facts)
    assert chosen.quantization.value == "mixed"
    predicted = loaded_bytes(chosen, facts)
    # All but the room that no matrix fitted into any more: 0.2 MB of the smallest kind.
    room = more_bits * base.uniform_bytes - (base.size_bytes - base.uniform_bytes)
    assert predicted == pytest.approx(count_held_bytes(model) + room, rel=0.005)


@pytest.mark.computing
@pytest.mark.parametrize("more_bits", [0.0, 0.25])
def test_what_is_stored_gives_the_same_base(made, more_bits):
    model, base, path = made(more_bits)
    again = load_model(
        inspect_model(str(DEMO)), device="cpu", dtype="bf16", quantization="mixed", base=path
    ).model
    found = dict(again.named_parameters())
    for name, weight in model.named_parameters():
        assert torch.equal(weight, found[name]), name
    assert put_base(load_packed(), path, torch.bfloat16) == base


@pytest.mark.computing
def test_a_wish_whose_file_is_there_is_read(made, tmp_path):
    _, base, path = made()
    written = path.read_bytes()
    assert settle(load_packed(), path, [], may_make=False) == base
    assert path.read_bytes() == written


@pytest.mark.computing
@pytest.mark.parametrize("damage", ["gone", "cut", "other", "empty"])
def test_a_file_that_does_not_fit_is_refused(made, tmp_path, tiny_models, damage):
    whole = made(0.25)[2].read_bytes()
    path, folder = tmp_path / "base.safetensors", DEMO
    if damage != "gone":
        path.write_bytes({"cut": whole[:-1000], "empty": b""}.get(damage, whole))
    if damage == "other":
        folder = tiny_models("llama")
    with pytest.raises(StudioError) as refused:
        settle(load_packed(folder), path, [[1, 2, 3]], folder=folder, may_make=False)
    assert refused.value.what.id == "mixed.file"


def test_without_rows_it_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(StudioError) as refused:
        settle(load_packed(), tmp_path / "base.safetensors", [[]])
    assert refused.value.why.id == "mixed.rows" and not list(tmp_path.iterdir())


def test_files_that_name_weights_otherwise_are_refused(tmp_path, rows, tiny_models):
    with pytest.raises(StudioError) as refused:
        settle(load_packed(), tmp_path / "base.safetensors", rows, folder=tiny_models("llama"))
    assert refused.value.why.id == "mixed.names" and not list(tmp_path.iterdir())


def test_the_end_that_is_asked_for_leaves_nothing(tmp_path, rows):
    class Ended(Exception):
        pass

    def end():
        raise Ended

    wish = BaseWish(path=tmp_path / "base.safetensors", rows=rows, more_bits=0.0, may_make=True, go_on=end)
    with pytest.raises(Ended):
        settle_base(load_packed(), str(DEMO), torch.bfloat16, wish)
    assert not list(tmp_path.iterdir())


@pytest.mark.computing
@pytest.mark.parametrize("family", ["qwen3", "gemma3", "phi3", "granite"])
def test_other_families(tmp_path, tiny_models, family):
    folder = tiny_models(family)
    torch.manual_seed(0)
    drawn = [torch.randint(3, 250, (40,)).tolist() for _ in range(12)]
    model = load_packed(folder, "fp32")
    matrices = sum(isinstance(one, Linear4bit) for one in model.modules())
    base = settle(model, tmp_path / "b.safetensors", drawn, folder=folder, more_bits=0.5, dtype=torch.float32)
    assert base.matrices == matrices
    assert base.kl <= base.uniform_kl and (base.fitted or base.kept)


@pytest.mark.patient
@pytest.mark.timeout(1800)
def test_a_trained_model_on_real_conversations(trained_model, real_chats, tmp_path):
    from tests.engine.plain_loop import prepare_rows
    from tests.engine.test_trained_model import make_recipe as make_real

    data = prepare_rows(make_real(trained_model, real_chats), tmp_path)
    kept = [data.train[i].token_ids.tolist() for i in range(ROWS)]
    model, uniform = (load_packed(trained_model) for _ in range(2))
    base = settle(model, tmp_path / "base.safetensors", kept, folder=trained_model)
    exact = AutoModelForCausalLM.from_pretrained(trained_model, dtype=torch.bfloat16).eval()
    held_out = [one.token_ids.tolist() for one in data.validation]
    ours, theirs = (measure_kl(exact, one, held_out) for one in (model, uniform))
    assert count_held_bytes(model) == count_held_bytes(uniform)
    assert ours <= 0.7 * theirs, (ours, theirs, base)

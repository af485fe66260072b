"""Real llama.cpp opens what was written of each family, in each form: numbers, greedy answers, tokens and chats."""

from __future__ import annotations

import pytest
import torch

from studio.models.gguf.llama_cpp import ask
from studio.models.gguf.tensor_types import get_mix
from studio.models.gguf.write import find_written, plan_file
from studio.models.gguf.written import compare_file, load_written
from tests.models.decoder.models import FAMILIES, FOREIGN
from tests.models.gguf.models import ALIKE, MODELS, PROMPTS, VOCABULARY, list_kl, make_folder, widen, write

pytestmark = pytest.mark.computing

GREEDY_TOKENS = 32
TIE = 0.05
"""Logits so close are no choice: llama.cpp rounds what it multiplies to 16 bits, and experts may change places."""
ROUNDED = 0.003
"""What llama.cpp's rounding of activations to 8 bits adds, in nats, however the weights are packed."""
NO_FILE = {"glm", "helium", "granite_dense", "granite_hybrid", "minicpm3", "gemma3n", "nemotron_h"}
"""Families of the fast path that GGUF files of this studio do not hold: refused by name."""


@torch.no_grad()
def say(model, ids):
    """Return the next tokens, greedily, and how far the best was from the second each time."""
    said, margins = list(ids), []
    for _ in range(GREEDY_TOKENS):
        best = model(torch.tensor([said]), use_cache=False).logits[0, -1].topk(2)
        margins.append(float(best.values[0] - best.values[1]))
        said.append(int(best.indices[0]))
    return said[len(ids) :], margins


@torch.no_grad()
def list_own_kl(model, other):
    """Return the KL of the token behind each prompt, both computed by transformers."""
    pairs = [
        [one(torch.tensor([ids])).logits[0, -1].log_softmax(-1) for one in (model, other)] for ids in PROMPTS
    ]
    return [float((wanted.exp() * (wanted - found)).sum()) for wanted, found in pairs]


@pytest.mark.parametrize("name", MODELS)
def test_it_computes_what_the_folder_does_in_each_form(name, tmp_path):
    kind, settings = MODELS[name]
    model = make_folder(tmp_path, kind, widen(settings))
    answers = [[ids, GREEDY_TOKENS] for ids in PROMPTS]
    # Where a router's scores are close, rounding sends a prompt's tokens to other experts.
    usual = min if any("expert" in key for key in model.config.to_dict()) else max
    for form in ("F16", "Q8_0", "Q6_K", "Q4_K_M"):
        path = write(tmp_path, form)
        plan = plan_file(tmp_path, get_mix(form), "tiny", path.name)
        asked = {"prompts": PROMPTS, "vocabulary": VOCABULARY, "context": 128}
        found = ask(path, asked | ({"answers": answers} if form == "F16" else {}))
        shares = list_kl(model, found["log_probabilities"])
        if form != "F16":
            assert "Q4_K" in {one.name for one in plan.types.values()} or form != "Q4_K_M"
            own = list_own_kl(model, load_written(plan, path, type(model)))
            assert usual(shares) <= 2 * usual(own) + ROUNDED, form
            continue
        compare_file(plan, path)
        assert max(shares) < ALIKE
        same = 0
        for ids, answer in zip(PROMPTS, found["answers"], strict=True):
            wanted, margins = say(model, ids)
            places = [
                at for at, (one, two) in enumerate(zip(wanted, answer["tokens"], strict=False)) if one != two
            ]
            same += not places
            assert not places or margins[places[0]] < TIE
            assert len(answer["tokens"]) == GREEDY_TOKENS or answer["reason"] == "eos"
        assert same >= 1


def test_each_family_of_the_fast_path_is_written_or_refused():
    written = {kind.model_type for kind, _ in MODELS.values()}
    for name, (kind, _) in (FAMILIES | FOREIGN).items():
        known = find_written(kind.model_type)
        assert (known is None) == (name in NO_FILE), name
        assert known is None or kind.model_type in written | {"mistral"}

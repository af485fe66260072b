"""What the source of transformers says of a family's attention is what its classes say."""

from __future__ import annotations

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from studio.models.sdpa import supports_sdpa

SILENT = ("openai-gpt",)
"""Families whose files lie elsewhere than their name says: seen when they are loaded."""


@pytest.mark.computing
def test_the_text_says_what_the_classes_say():
    known = {}
    for family, names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        name = names if isinstance(names, str) else names[0]
        try:
            known[family] = (name, getattr(transformers, name)._supports_sdpa)
        except (ImportError, AttributeError):  # needs a package that is not here
            continue
    wrong = {f for f, (name, has) in known.items() if supports_sdpa(f, name) != has}
    assert len(known) > 150 and not all(has for _, has in known.values())
    assert wrong <= set(SILENT)


def test_what_is_not_known_is_left_to_the_loading():
    assert (
        supports_sdpa("no_such", "NoSuchForCausalLM") and supports_sdpa("", "") and supports_sdpa("../x", "X")
    )

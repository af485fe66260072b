"""Whether a file that was written says what its folder says: it is read again, as a file from anywhere would be.

What a GGUF file cannot say llama.cpp takes from the architecture, and a model that differs there would answer, wrongly.
The config that the file is opened with has what the published models of its family have: where that differs from the
folder's, the file is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studio.core.temporary_folder import TemporaryFolder
from studio.models.gguf.config_keys import scale_longrope
from studio.models.gguf.decode import decode_parts
from studio.models.gguf.families import build_config
from studio.models.gguf.file_tensors import build_stored
from studio.models.gguf.header import read_header, refuse
from studio.models.gguf.keys import GgufKeys
from studio.models.gguf.tensors import name_tensors, open_tensors
from studio.models.gguf.tokenizer import STRINGS, write_tokenizer
from studio.models.gguf.write import FilePlan, open_folder

if TYPE_CHECKING:
    import torch

IGNORED = frozenset(
    "architectures dtype torch_dtype transformers_version _name_or_path model_type use_cache initializer_range "
    "attention_dropout bos_token_id eos_token_id pad_token_id sep_token_id rope_theta rope_scaling pretraining_tp "
    "is_encoder_decoder output_attentions output_hidden_states return_dict problem_type chunk_size_feed_forward "
    "id2label label2id embd_pdrop resid_pdrop attention_bias mlp_bias use_bias use_qkv_bias output_router_logits "
    "router_aux_loss_coef router_jitter_noise aux_loss_alpha seq_aux layer_norm_bias max_window_layers "
    "hidden_dropout residual_dropout embedding_dropout tie_encoder_decoder "
    "vocab_size_per_layer_input use_sliding_window quantization_config head_dim default_theta "
    "moe_layer_start_index num_nextn_predict_layers mtp_num_hidden_layers block_auto_adjust_ff_dim".split()
)
"""What no answer depends on, or what the tensors themselves show (biases)."""
TEXTS = (
    "The quick brown fox jumps over the lazy dog. 0123456789",
    "I'm sure we'll don't, IT'S",
    "  two   spaces\n\n\ttab",
    "Grüße, naïve café – “quoted”…",
    "你好，世界！今天是2025年。",
    "日本語のテキスト 한국어",
    "😀 👩\u200d👩\u200d👧 emoji",
    "x = 3.14159 * (y + 2)\n    return x",
    "camelCaseHTTPServer snake_case_name",
    "https://example.com/a?b=c&d=1#x",
    "1234567890 1,234.56 0x1F",
)
ROUNDED = {"F32": 0.0, "F16": 1e-3, "BF16": 8e-3, "Q8_0": 0.012, "Q6_K": 0.04, "Q5_K": 0.08, "Q5_1": 0.08, "Q5_0": 0.1,
           "Q4_K": 0.15}  # fmt: skip
"""Most that a tensor may be off in a form, as a share of its size (root mean square): twice what normal weights are."""


def compare_file(plan: FilePlan, path: Path, go_on: Callable[[], None] = lambda: None) -> None:
    """Read `path` again and hold it against its folder. Raises StudioError where they differ, naming what differs.

    go_on: called before each tensor; may raise.
    """
    header = read_header(path, STRINGS)
    keys = GgufKeys(header)
    _compare_config(plan, build_config(plan.family, keys), path.name)
    _compare_weights(plan, path, go_on)
    _compare_tokens(plan, header, path.name)


def load_written(plan: FilePlan, path: Path, kind: type) -> Any:
    """Return a model of the class `kind` of transformers, in fp32, with the weights that the file at `path` holds."""
    import torch
    from transformers import AutoConfig

    weights = dict(open_tensors(plan.family, GgufKeys(read_header(path)), plan.config))
    config = AutoConfig.from_pretrained(plan.folder, trust_remote_code=False)
    return kind.from_pretrained(None, config=config, state_dict=weights, dtype=torch.float32).eval()


def read_written(plan: FilePlan, path: Path) -> Callable[[str], torch.Tensor]:
    """Return what gives a weight of the file at `path` by its name in transformers, opened when it is asked for.

    Of a file whose tensors are each one weight or two of one, so not of experts.
    """
    keys = GgufKeys(read_header(path))
    parts: dict[str, set[str]] = {}
    for name, (_, there) in name_tensors(plan.family, keys).items():
        parts.setdefault(there.partition("#")[0], set()).add(name)
    return lambda name: dict(open_tensors(plan.family, keys, plan.config, parts[name], wide=True))[name]


def _compare_config(plan: FilePlan, found: Mapping[str, Any], file: str) -> None:
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[plan.family.model_type]
    settings = {key: value for key, value in found.items() if key not in ("architectures", "model_type")}
    read = kind(**settings).to_dict()
    known = kind().to_dict()
    for name, wanted in plan.config.items():
        if name in IGNORED or name not in known:  # what no class knows no model reads
            continue
        found = read.get(name)
        if name == "rope_parameters":
            longest = plan.config["max_position_embeddings"]
            wanted, found = (_say_rope(one, longest) for one in (wanted, found))
        if _is_same(wanted, found):
            continue
        raise refuse("not_said", file, setting=name, value=str(wanted)[:60])


def _say_rope(rope: Mapping[str, Any], longest: int) -> dict[str, Any]:
    """Return what rotary parameters amount to: without what only pictures have, with what follows from the rest."""
    if {*rope} == {"full_attention", "sliding_attention"}:
        full, local = (_say_rope(rope[kind], longest) for kind in ("full_attention", "sliding_attention"))
        alike = local["rope_type"] == "default" and local["rope_theta"] == full["rope_theta"]
        return full if alike and full["rope_type"] != "proportional" else {"full": full, "local": local}
    said = {name: value for name, value in rope.items() if not name.startswith("mrope_")}
    if said.get("rope_type") == "longrope":
        said["attention_factor"] = scale_longrope(said, longest)
    return said


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return all(_is_same(one.get(key), other.get(key)) for key in {*one, *other})
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
    if numbers and not isinstance(one, bool):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-12)
    return one == other or (one in (None, 0, False) and other in (None, 0, False))


def _compare_weights(plan: FilePlan, path: Path, go_on: Callable[[], None]) -> None:
    """Hold every tensor's numbers against those that it was packed from."""
    header = read_header(path)
    with ExitStack() as stack:
        read = open_folder(plan.folder, stack)
        for tensor in plan.tensors:
            go_on()
            stored = header.tensors[tensor.name]
            wanted = build_stored(plan.family, tensor, plan.config, read)
            rows = wanted.reshape(-1, wanted.shape[-1])
            sums = decode_parts(stored, partial(_square, rows))
            off, size = (math.sqrt(sum(one) / rows.numel()) for one in zip(*sums, strict=True))
            if not off <= ROUNDED[stored.block_type.name] * size + 1e-30:
                raise refuse(
                    "packed_wrong", path.name, tensor=tensor.name, share=f"{off / max(size, 1e-30):.3g}"
                )


def _square(rows: torch.Tensor, start: int, found: torch.Tensor) -> tuple[float, float]:
    """Return the sums of the squares of what `found` is off `rows` from `start` on, and of those."""
    part = rows[start : start + len(found)].double()
    return float((found.double() - part).square().sum()), float(part.square().sum())


def _compare_tokens(plan: FilePlan, header: Any, file: str) -> None:
    """Read texts by the file's tokenizer and by the folder's."""
    from transformers import AutoTokenizer

    with TemporaryFolder("gguf") as folder:
        write_tokenizer(header, folder, plan.config["max_position_embeddings"])
        ours = AutoTokenizer.from_pretrained(folder)
        theirs = AutoTokenizer.from_pretrained(plan.folder)
        specials = [one for one in theirs.all_special_tokens if one]
        for words in (*TEXTS, " ".join(("a", *specials, "b"))):
            for whole in (False, True):
                found, wanted = (one.encode(words, add_special_tokens=whole) for one in (ours, theirs))
                if found != wanted:
                    raise refuse("tokens_differ", file, words=words[:40])

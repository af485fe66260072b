"""Merged folders in fewer bits: FP8 and 4-bit integers for vLLM, SGLang and transformers, MLX's 4 bits for Macs.

The merged weights are stored first, beside it, and go when the packed ones are checked: opened again, matrix by matrix,
they must compute nearly what the merged model does, on the run's own rows.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.core.json_file import read_json
from studio.engine.checkpoint import require_space
from studio.engine.exporters import gguf_file, merged
from studio.engine.exporters.exporter import PROBE, Exporter, ExportJob
from studio.engine.exporters.folder_answers import open_plain
from studio.engine.exporters.kept_parts import KeptParts
from studio.engine.exporters.streamed_merge import count_rows_bytes, draw_dense
from studio.models.architectures import holds_score
from studio.models.packed_forms import (
    FORMS,
    PackedForm,
    choose_group,
    open_packed,
    read_packed,
    write_packed,
)

if TYPE_CHECKING:
    import torch

MOST_KL = {"fp8": 0.02, "w4a16": 0.1, "mlx": 0.1}
"""Most that a folder may be off the merged model, in nats a token: several times what the demo shows."""
LOSS_KL = {"fp8": 0.002, "w4a16": 0.02, "mlx": 0.02}
"""Nats a token that the demo's answers are off."""
CHECKED_TOKENS, ROW_TOKENS, COMPARED_TOKENS = 2048, 512, 64
"""Tokens of the rows that a folder is held against its model by: in all, of one row, compared at once."""
KEPT_BYTES = 2**28
"""Of the model's answers, in 16 bits, while the folder's are computed."""
USES = {
    "fp8": (
        "- vLLM: `vllm serve FOLDER`, on cards from compute capability 8.9 on (RTX 40, L4, H100)",
        "- SGLang: `python -m sglang.launch_server --model-path FOLDER`",
    ),
    "w4a16": (
        "- vLLM: `vllm serve FOLDER`, on cards from compute capability 7.5 on",
        "- SGLang: `python -m sglang.launch_server --model-path FOLDER`",
    ),
    "mlx": (
        '- MLX on a Mac: `mlx_lm.generate --model FOLDER --prompt "Hello"`, `mlx_lm.chat --model FOLDER`',
        "- LM Studio on a Mac: put the folder into `~/.lmstudio/models/NAME/`",
    ),
}


def find_problem(form: PackedForm, job: ExportJob) -> Text | None:
    """Return why this result cannot have this form; None when it can, as far as its config tells."""
    if holds_score(job.run_folder / job.record.artifact):
        return text("export.packed.scores")
    config = Path(job.facts.folder) / "config.json"
    if job.facts.folder and config.is_file():
        read = read_json(config)
        inner = read.get("text_config") or read
        if "text_config" in read:
            return text("export.packed.pictures")
        if any("expert" in key and inner[key] for key in inner):
            return text("export.packed.experts")
    return None


def size_bytes(form: PackedForm, job: ExportJob) -> int:
    """Return about what the folder takes."""
    ends = 0 if form.ends else 2 * max(0, job.facts.parameters - job.facts.linear_parameters)
    matrices = job.facts.parameters if form.ends else job.facts.linear_parameters
    return round(matrices * form.bits / 8) + ends


def memory_bytes(job: ExportJob) -> int:
    """Return what merging, reading the rows and packing take, and the answers that are kept."""
    kept_bytes = min(KEPT_BYTES, 2 * CHECKED_TOKENS * job.facts.vocabulary)
    return merged.memory_bytes(job) + count_rows_bytes(job) + kept_bytes


def write(form: PackedForm, job: ExportJob) -> None:
    """Fill job.target with the folder and a card; see Exporter.

    The disk also takes the merged weights meanwhile, two bytes a parameter.
    """
    from studio.engine.artifact import write_card
    from studio.models.streamed_model import read_tensors, stream

    require_space(job.target, 2 * job.facts.parameters + size_bytes(form, job))
    folder = merged.store_once(job, KeptParts(job.target))
    model = open_plain(folder, job.go_on)
    names = list_matrices(form, model)
    if not choose_group(form, set(names.values())):
        widths = ", ".join(map(str, sorted(set(names.values()))))
        raise StudioError(
            text("export.packed"), text("export.packed.rows", widths=widths), text("export.packed.fix")
        )
    rows = [[token.id for token in row.tokens] for row in gguf_file.read_rows(job, folder)]
    rows = [ids for ids in rows if len(ids) > 1]
    job.begin(text("export.phase.pack", form=form.name))
    importance = weigh(model, names, rows) if rows and form.name != "fp8" else {}
    write_packed(folder, job.target, form, names, importance, job.go_on)
    for file in folder.iterdir():
        if file.suffix != ".safetensors" and file.name not in (
            "config.json",
            "model.safetensors.index.json",
        ):
            shutil.copy(file, job.target / file.name)  # the part stays whole
    job.begin(text("export.phase.check"))
    packed = draw_dense(folder)
    if packed is not None:
        stream(packed, open_packed(job.target, form, names, read_tensors(job.target)), job.go_on)
    kl = measure(form, job.target, names, model, rows, packed)
    if kl > MOST_KL[form.name]:
        raise StudioError(
            text("export.packed"), text("export.packed.far", kl=f"{kl:.3g}"), text("export.packed.fix")
        )
    card = write_card(job.facts, job.record).replace("library_name: peft", "library_name: transformers")
    told = f"Opened again: {kl:.2g} nats a token from the 16-bit model."
    (job.target / "README.md").write_text("\n".join((card, told, "", *USES[form.name], "")), encoding="utf-8")


def list_matrices(form: PackedForm, model: Any) -> dict[str, int]:
    """Return the matrices that are packed, by their names in the folder, and how many inputs each has."""
    from torch import nn

    head = model.get_output_embeddings()
    tied = bool(getattr(model.config, "tie_word_embeddings", False))
    found = {}
    for name, one in model.named_modules():
        linear = isinstance(one, nn.Linear) and (one is not head or (form.ends and not tied))
        if linear or (form.ends and isinstance(one, nn.Embedding)):
            found[f"{name}.weight"] = one.weight.shape[1]
    return found


def weigh(model: Any, names: dict[str, int], rows: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
    """Return how much each input of each linear counts for these rows; of a table that is the head, too, the head's."""
    from torch import nn

    from studio.models.gguf.importance import measure_inputs

    places = {name: name.removesuffix(".weight") for name in names}
    linears = {
        name: place for name, place in places.items() if isinstance(model.get_submodule(place), nn.Linear)
    }
    return measure_inputs(model, linears, rows)


def measure(
    form: PackedForm,
    folder: Path,
    names: dict[str, int],
    model: Any,
    rows: Sequence[Sequence[int]],
    packed: Any = None,
) -> float:
    """Return the mean KL of the packed folder's next tokens from the model's.

    packed: the model with the folder's weights; None: they take the place of the model's.
    """
    import torch
    from transformers import AutoTokenizer

    from studio.models.row_turns import compute_rows

    texts: list[Sequence[int]] = []
    left = min(CHECKED_TOKENS, KEPT_BYTES // (2 * model.config.vocab_size))
    for ids in rows or [AutoTokenizer.from_pretrained(folder)(PROBE)["input_ids"]]:
        if left > 0:
            texts.append(ids[: min(left, ROW_TOKENS)])
            left -= len(texts[-1])
    wanted = deque(compute_rows(model, texts, lambda output: output.logits[0].float().log_softmax(-1).half()))
    if packed is None:
        state = model.state_dict()
        with torch.no_grad():
            for name, weight in read_packed(folder, form, names):
                state[name].copy_(weight)

    def compare(output: Any) -> float:
        """Return the sum of the KL of a row's tokens, a few at a time: one of 512 has 0.3 GB of logits."""
        off, parts = 0.0, output.logits[0].split(COMPARED_TOKENS)
        for one, other in zip(wanted.popleft().split(COMPARED_TOKENS), parts, strict=True):
            one, other = one.float(), other.float().log_softmax(-1)
            off += float((one.exp() * (one - other)).sum())
        return off

    total = sum(compute_rows(packed or model, texts, compare))
    return total / max(1, sum(map(len, texts)))


def load_lines(form: PackedForm, folder: str) -> tuple[str, ...]:
    """Return the commands that serve the folder."""
    return tuple(
        use.split("`")[1].replace("FOLDER", repr(folder)) for use in USES[form.name] if "FOLDER" in use
    )


def _make_exporter(form: PackedForm) -> Exporter:
    return Exporter(
        name=form.name,
        size_bytes=lambda job: size_bytes(form, job),
        memory_bytes=memory_bytes,
        write=lambda job: write(form, job),
        load_lines=lambda folder, base: load_lines(form, folder),
        find_problem=lambda job: find_problem(form, job),
        place="mac" if form.name == "mlx" else "server",
        loss_kl=LOSS_KL[form.name],
        checked_by="studio",
        merges=True,
    )


PACKED_FOLDERS = tuple(map(_make_exporter, FORMS))

"""The merged model written weight by weight: in memory is a layer, or the table of words, not the model in fp32.

For models whose weights are made of their files' tensors, with a LoRA adapter, what is trained in full beside it and
new tokens among it, or with all weights trained. What gives scores, or was trained on in 8 bits or on experts in 4, is
loaded as a whole (merged.py), which takes 4.8 bytes a weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studio.core.i18n import text
from studio.core.json_file import read_json
from studio.engine.exporters.exporter import ExportJob, probe_ids
from studio.engine.run_folder import RunFolder
from studio.models.architectures import holds_score
from studio.models.gguf.importance import ROWS, TOKENS
from studio.models.processor_parts import PART_BYTES, count_threads
from studio.models.row_turns import ROWS_BYTES, WAITING_STATES
from studio.planning.layer_kinds import list_kinds

if TYPE_CHECKING:
    import torch

    from studio.core.facts import ModelFacts
    from studio.engine.artifact import Fingerprint

BESIDE_BYTES = 2**26
"""Of a streamed model, whatever its size: 18 MB were seen of the demo (benchmarks/export_memory.py)."""
PACKING_BYTES = 2**26
"""Of reading the run's rows and packing, beside the parts that are packed at once: 153 MB in all were seen of the demo
on two cores."""
BESIDE_SHARE = 0.125
"""Of the largest part, for what is read and rounded beside it: 0.11 was seen of Llama-3.1-8B's head."""
ROWS_SHARE, EXPERTS_SHARE = 0.625, 1.5
"""The same of a table whose rows are trained or become more: it and its rounded numbers. Of a layer of experts, whose
stack is put together and widened: 470 MB were seen of layers of 211."""
LORA_MATRICES, DORA_MATRICES = 2.25, 8
"""So many of an adapter's largest matrices are beside a layer that is merged: the matrix, its correction, and by DoRA
their sums and sizes. Of layers of 344 MB, their largest matrix 101, 500 to 564 MB were seen by LoRA, 1,087 by DoRA."""


def can_stream(job: ExportJob) -> bool:
    """Return whether the result is merged weight by weight, as far as its config and its adapter's tell."""
    artifact = job.run_folder / job.record.artifact
    source = Path(job.facts.folder) if job.record.adapter else artifact
    if job.facts.quantization != "none" or holds_score(artifact) or not (source / "config.json").is_file():
        return False
    if not job.record.adapter:
        return True
    opened = job.plan.quantization.value
    return _is_lora(artifact) and (opened == "none" or (opened in ("nf4", "mixed") and is_dense(source)))


def can_answer_streamed(job: ExportJob) -> bool:
    """Return whether the merged model, which other forms are held against, also answers part by part."""
    source = job.facts.folder if job.record.adapter else job.run_folder / job.record.artifact
    return can_stream(job) and is_dense(Path(source))


def is_dense(folder: Path) -> bool:
    """Return whether the config of `folder` is of one language model without experts."""
    file = folder / "config.json"
    config = read_json(file) if file.is_file() else {}
    return (
        bool(config)
        and "text_config" not in config
        and not any("expert" in key and config[key] for key in config)
    )


def draw_dense(folder: Path) -> Any | None:
    """Return the model of `folder` with placeholders for its weights (models/streamed_model.py); None for others."""
    from studio.models.streamed_model import draw_streamed

    return draw_streamed(folder) if is_dense(folder) else None


def _read_adapter(folder: Path) -> Mapping[str, Any]:
    """Return the settings of the adapter in `folder`; {} where there is none."""
    file = folder / "adapter_config.json"
    return read_json(file) if file.is_file() else {}


def _is_lora(folder: Path) -> bool:
    """Return whether an adapter is LoRA or DoRA on layers that the model has."""
    config = _read_adapter(folder)
    return config.get("peft_type") == "LORA" and not config.get("layer_replication")


def count_bytes(job: ExportJob) -> int:
    """Return what a streamed model takes of the processor's memory: a layer or a table in fp32, and what is beside."""
    facts = job.facts
    table = facts.vocabulary * facts.hidden_size
    tables = table if facts.tied_embeddings else 2 * table
    config = _read_adapter(job.run_folder / job.record.artifact)
    layer = _count_largest(facts, facts.parameters - tables)
    beside = layer * (EXPERTS_SHARE if facts.expert_parameters else BESIDE_SHARE)
    if config:
        matrices = (
            outputs * inputs for kind in list_kinds(facts) for outputs, inputs in kind.linears.values()
        )
        most = DORA_MATRICES if config.get("use_dora") else LORA_MATRICES
        beside = max(beside, most * max(matrices, default=0))
    layer_bytes = 4 * (layer + beside)
    table_bytes = 4 * table * (1 + (ROWS_SHARE if config.get("trainable_token_indices") else BESIDE_SHARE))
    return round(max(layer_bytes, table_bytes)) + BESIDE_BYTES


def _count_largest(facts: ModelFacts, parameters: int) -> float:
    """Return the weights of the largest of all layers, which have `parameters`: the mean one's where no kind is known.

    Of Nemotron 3 Nano, of whose 52 layers 23 have experts, the largest has 2.2 times the mean.
    """
    experts = facts.expert_parameters / facts.experts[0] if facts.experts[0] else 0
    kinds = (
        sum(outputs * inputs for outputs, inputs in kind.linears.values()) + (experts if kind.routed else 0)
        for kind in list_kinds(facts)
    )
    mean = max(facts.linear_parameters + facts.expert_parameters, parameters) / max(1, facts.layers)
    return max(mean, *kinds)


def count_rows_bytes(job: ExportJob) -> int:
    """Return what reading rows of the data takes: states that wait, the answers of one; and what packing does."""
    facts = job.facts
    waiting = min(ROWS_BYTES, 4 * WAITING_STATES * facts.hidden_size * ROWS * TOKENS)
    return waiting + 4 * facts.vocabulary * TOKENS + PACKING_BYTES + count_threads() * PART_BYTES


def write_streamed(job: ExportJob, tokenizer: Any, dtype: torch.dtype) -> Fingerprint | None:
    """Store the merged weights in 16 bits, with their config, and return what they compute in fp32.

    None, and nothing is written, where the weights are not made of the files' tensors alone. The numbers are those that
    merging the whole model in fp32 and rounding it gives, to the bit. Raises StudioError, OSError.
    """
    from studio.engine.artifact import Fingerprint, probe, strip_path, sum_bits
    from studio.engine.stop_tokens import set_ends
    from studio.models.adapt import load_adapter, refuse_shared
    from studio.models.adapter_beside import find_beside
    from studio.models.converted_weights import ConvertedWeights
    from studio.models.streamed_model import draw_streamed, read_folder, read_merged, read_nf4, stream
    from studio.models.weight_files import write_weights

    artifact = job.run_folder / job.record.artifact
    source = Path(job.facts.folder) if job.record.adapter else artifact
    settings = (source, job.plan.attention.value, job.plan.rope.value if job.record.adapter else "")
    model, written = draw_streamed(*settings), draw_streamed(*settings)
    if model is None or written is None:
        return None
    read = ConvertedWeights(model, source).read
    stored = ConvertedWeights(written, source)
    if job.record.adapter:
        beside, after = find_beside(model, artifact), find_beside(written, artifact)
        if beside is None or after is None:
            return None
        stored = ConvertedWeights(written, source, after.longer)
        if job.plan.quantization.value != "none":
            read = read_nf4(model, read, RunFolder(job.run_folder).find_base(job.plan))
        read = beside.read(read)
        tuned = load_adapter(model, artifact) if beside.is_plain else beside.put_corrections(model)
        if tuned is None:
            return None
        refuse_shared(tuned)
        read = read_merged(model, read)
    job.begin(
        text("export.phase.merge" if job.record.adapter else "export.phase.write")
    )  # each weight is both
    sums: dict[str, tuple[torch.dtype, bytes]] = {}

    def round_all() -> Iterator[torch.Tensor]:
        """Yield what is stored: rounded in the order of the model's weights, for whose chances that is the seed's."""
        generator, waiting = _make_generator(job.record.seed), {}
        groups = {group.names[-1]: group for group in stored.groups}
        for name, _ in written.named_parameters():
            job.go_on()
            waiting[name] = _round(read(name), dtype, generator)
            sums[name] = dtype, sum_bits(waiting[name])
            if (group := groups.get(name)) is not None:
                made = stored.store({one: waiting.pop(one) for one in group.names})
                yield from (made.pop(one) for one in group.shapes)

    shapes = {name: shape for group in stored.groups for name, shape in group.shapes.items()}
    write_weights(job.target, shapes, dtype, round_all())
    # The class and settings of the run, without its adapter, and the numbers that were written.
    set_ends(written, tokenizer)  # whoever loads these files stops where the run's answers end
    written.config.dtype, written.config.architectures = (
        str(dtype).removeprefix("torch."),
        [type(written).__name__],
    )
    written.config.save_pretrained(job.target)
    written.generation_config.save_pretrained(job.target)
    strip_path(job.target / "config.json")
    stream(written, read_folder(written, job.target), job.go_on)
    return Fingerprint(*probe(written, probe_ids(tokenizer)), sums)


def _make_generator(seed: int) -> torch.Generator:
    import torch

    return torch.Generator("cpu").manual_seed(seed)


def _round(weight: torch.Tensor, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Return `weight` in `dtype` as cast_weights() rounds it in fp32, a part at a time."""
    import torch

    from studio.models.adapt import ROUNDED_AT_ONCE, round_stochastically

    rounded = torch.empty(weight.shape, dtype=dtype)
    flat, target = weight.contiguous().view(-1), rounded.view(-1)
    for start in range(0, len(flat), ROUNDED_AT_ONCE):
        part = flat[start : start + ROUNDED_AT_ONCE].float()
        by_chance = dtype == torch.bfloat16
        target[start : start + ROUNDED_AT_ONCE] = round_stochastically(part, generator) if by_chance else part
    return rounded

"""One GGUF file for Ollama, LM Studio and llama.cpp, in 16 bits or fewer, with a Modelfile and a card.

The merged weights are stored first, beside it, then packed tensor by tensor, and go when the file is checked: it is
read again as any file would be (models/gguf/written.py), and llama.cpp itself opens it where its package is installed.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studio.core.atomic_files import write_json
from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.core.json_file import read_json
from studio.engine.checkpoint import require_space
from studio.engine.exporters import merged
from studio.engine.exporters.exporter import Exporter, ExportJob
from studio.engine.exporters.folder_answers import PROMPTS, FolderAnswers, load_whole, open_plain, predict
from studio.engine.exporters.gguf_card import write_card
from studio.engine.exporters.kept_parts import KeptParts
from studio.engine.exporters.modelfile import make_modelfile
from studio.engine.exporters.streamed_merge import can_answer_streamed, count_rows_bytes, draw_dense
from studio.engine.run_folder import RunFolder
from studio.models.architectures import holds_score
from studio.models.gguf.importance import ROWS, cut_texts
from studio.models.gguf.llama_cpp import LlamaCppError, ask, is_there
from studio.models.gguf.tensor_journal import drop_journal
from studio.models.gguf.tensor_types import MIXES, TypeMix
from studio.models.gguf.write import find_written

if TYPE_CHECKING:
    import torch

    from studio.data.preview import PreviewRow
    from studio.models.gguf.write import FilePlan

FIT = TypeMix(name="FIT", usual="Q4_K", careful="Q6_K", number=15)
"""Forms by what each tensor was measured to lose; begins as Q4_K_M, whose number programs show."""
USUAL = "gguf_q4_k_m"
"""The form that most people want: a third of 16 bits, at a loss that is hard to see."""
BITS = {"F16": 16.0, "BF16": 16.0, "Q8_0": 8.5, "Q6_K": 6.56, "Q5_K_M": 5.7, "Q4_K_M": 4.85, "FIT": 4.85}
"""Bits a weight, of whole files of usual models."""
LOSS_KL = {"F16": 0.0, "BF16": 0.0, "Q8_0": 0.0001, "Q6_K": 0.0004, "Q5_K_M": 0.001, "Q4_K_M": 0.004,
           "FIT": 0.002}  # fmt: skip
"""Nats a token that the demo's answers are off, with the run's rows as importance."""
TOKEN_BYTES = 55
"""Of the tokenizer for each token, with its merges."""
SHARP = 1e-3
"""Most KL of a file in 16 bits from its folder, as llama.cpp computes it, in nats a token: 4e-6 was seen."""
LEFT = 0.05
"""What llama.cpp's own rounding of activations to 8 bits adds in forms of fewer bits: 0.012 was seen of a trained model
of 135 million weights, whose packed weights alone are 0.0003 off."""
IMPORTANCE, LOSSES, CURVE = "importance.safetensors", "losses.json", "curve.json"
"""Kept parts beside the merged weights."""
CHATS = (
    [{"role": "user", "content": "What is the capital of France?"}],
    [
        {"role": "user", "content": "Say “hello” & <b>."},
        {"role": "assistant", "content": "hello & <b>"},
        {"role": "user", "content": "再说一次。"},
    ],
)


def find_problem(job: ExportJob) -> Text | None:
    """Return why this result cannot be a GGUF file; None when it can, as far as its family tells."""
    if holds_score(job.run_folder / job.record.artifact):
        return text("gguf.scores.why")
    family = job.facts.family
    config = Path(job.facts.folder) / "config.json"
    if job.facts.folder and config.is_file():
        inner = read_json(config).get("text_config")
        family = str(inner.get("model_type", family)) if isinstance(inner, Mapping) else family
    return None if find_written(family) else text("gguf.no_family.why", family=family)


def count_bytes(mix: TypeMix, job: ExportJob) -> int:
    """Return about what the file takes."""
    if mix is FIT and job.limits.size_bytes:
        return job.limits.size_bytes
    return round(job.facts.parameters * BITS[mix.name] / 8) + TOKEN_BYTES * job.facts.vocabulary


def memory_bytes(mix: TypeMix, job: ExportJob) -> int:
    """Return what merging, reading the rows and packing take; llama.cpp, which opens a view of the file, takes less.

    Where the whole model is needed, the opened file's weights: in 16 bits as they are read, in fp32 as they compute.
    """
    if mix is FIT or not can_answer_streamed(job):
        return max(merged.whole_bytes(job), 6 * job.facts.parameters) + count_rows_bytes(job)
    return merged.memory_bytes(job) + count_rows_bytes(job)


def write(mix: TypeMix, job: ExportJob) -> None:
    """Fill job.target with the file, a Modelfile for Ollama and a card; see Exporter.

    The disk also takes the merged weights meanwhile, two bytes a parameter. The merged weights, what was measured on
    the run's rows and every tensor in the file are parts: what an earlier attempt finished is not done again.
    """
    from studio.models.gguf.write import write_file
    from studio.models.gguf.written import compare_file

    made = _prepare(mix, job)
    plan, path, folder = made.plan, made.path, made.plan.folder
    job.begin(text("export.phase.pack", form=mix.name))
    wanted = FolderAnswers.measure(made.model, folder) if is_there() else None
    plan = plan if mix is not FIT else _fit(job, made)
    made = dataclasses.replace(made, model=None)
    write_file(plan, path, made.importance, lambda done, total: job.go_on(), goes_on=True)
    job.begin(text("export.phase.check"))
    compare_file(plan, path, job.go_on)
    checked = _ask_llama_cpp(job, plan, path, mix, wanted) if wanted else {}
    modelfile = make_modelfile(
        path.name, folder, RunFolder(job.run_folder).read_recipe().data, [row.conversation for row in made.seen],
        adds_begin=bool(plan.metadata.get("tokenizer.ggml.add_bos_token")),
        context=int(plan.config["max_position_embeddings"]),
    )  # fmt: skip
    (job.target / "Modelfile").write_text(modelfile.words, encoding="utf-8")
    card = write_card(job, path, mix, checked, modelfile, rows=made.weighed)
    if mix is FIT:
        forms = Counter(kind.name for name, kind in plan.types.items() if kind.values > 1)
        card += (
            "\nTensors by form: " + ", ".join(f"{count} {name}" for name, count in forms.most_common()) + "\n"
        )
    (job.target / "README.md").write_text(card, encoding="utf-8")
    for beside in ("LICENSE", "LICENSE.txt", "USE_POLICY.md"):
        if job.facts.folder and (Path(job.facts.folder) / beside).is_file():
            shutil.copy(Path(job.facts.folder) / beside, job.target / beside)
    drop_journal(path)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PreparedFile:
    """What a file is made of, before anything is packed."""

    parts: KeptParts
    path: Path
    plan: FilePlan
    model: Any
    """The merged model in fp32, where it is needed; else None."""
    seen: Sequence[PreviewRow]
    rows: list[list[int]]
    importance: Mapping[str, torch.Tensor]
    weighed: int
    """Rows that the importance comes from."""


def _prepare(mix: TypeMix, job: ExportJob) -> PreparedFile:
    """Merge, plan and weigh, as far as that is not there yet. Raises StudioError, ExportStopped, OSError."""
    from studio.models.gguf.write import plan_file

    parts = KeptParts(job.target)
    if not parts.list_files():
        require_space(job.target, 2 * job.facts.parameters + count_bytes(mix, job))
    folder = merged.store_once(job, parts)
    name = name_model(job)
    path = job.target / f"{name}-{mix.name}.gguf"
    plan = plan_file(folder, mix, name, path.name)
    seen = read_rows(job, folder)
    rows = [ids for row in seen if len(ids := [token.id for token in row.tokens]) > 1]
    rows = rows if mix.usual.endswith("_K") else []
    model = None
    if is_there() or rows or mix is FIT:
        model = load_whole(folder) if mix is FIT else open_plain(folder, job.go_on)
    job.go_on()
    importance, weighed = _weigh_once(job, parts, plan, model, rows)
    return PreparedFile(
        parts=parts, path=path, plan=plan, model=model, seen=seen, rows=rows, importance=importance, weighed=weighed
    )  # fmt: skip


def _weigh_once(
    job: ExportJob, parts: KeptParts, plan: FilePlan, model: Any, rows: list[list[int]]
) -> tuple[dict[str, torch.Tensor], int]:
    """Return the importance and of how many rows it is: measured now, where no earlier attempt did.

    None is kept, too: tensors that are in the file already were packed by it.
    """
    from safetensors import safe_open
    from safetensors.torch import save_file

    file = parts.folder / IMPORTANCE
    if not parts.has(f"{parts.folder.name}/{IMPORTANCE}"):
        job.begin(text("export.phase.weigh"))
        found = weigh(plan, model, rows) if rows else {}
        save_file(
            {name: one.contiguous() for name, one in found.items()}, file, {"rows": str(len(cut_texts(rows)))}
        )
        parts.keep([file])
    with safe_open(file, framework="pt") as kept:
        return {name: kept.get_tensor(name) for name in kept.keys()}, int(kept.metadata()["rows"])


def _fit(job: ExportJob, made: PreparedFile) -> FilePlan:
    """Return the plan with the forms that lose least within the job's limits: without any, in the size of Q4_K_M.

    Raises StudioError where no file is so small or so close.
    """
    from studio.models.gguf.sensitivity import TooSmall, choose

    limits, plan = job.limits, made.plan
    wanted_bytes = limits.size_bytes or (0 if limits.kl else plan.size_bytes)
    try:
        losses = _measure_once(job, made)
        return choose(plan, losses, size_bytes=wanted_bytes, kl=limits.kl or math.inf).plan
    except TooSmall as error:
        part = "size" if limits.size_bytes else "loss"
        why = text(f"export.fit.{part}", mb=f"{error.size_bytes / 1e6:,.1f}")
        raise StudioError(text("export.fit"), why, text("export.fit.fix")) from error


def measure_curve(job: ExportJob) -> None:
    """Keep, as a part, what a file takes and loses between 8 bits and 4 for each tensor; nothing is packed yet.

    Raises what write() raises before it packs.
    """
    from studio.models.gguf.sensitivity import choose

    made = _prepare(FIT, job)
    curve = choose(made.plan, _measure_once(job, made)).curve
    points = [[point.size_bytes, point.kl] for point in curve]
    write_json(made.parts.folder / CURVE, {"points": points, "usual_bytes": made.plan.size_bytes})
    made.parts.keep([made.parts.folder / CURVE])


def _measure_once(job: ExportJob, made: PreparedFile) -> dict[str, dict[str, float]]:
    """Return what each tensor loses in each form; those that an earlier attempt measured are not measured again."""
    from transformers import AutoTokenizer

    from studio.models.gguf.sensitivity import measure_losses

    file = made.parts.folder / LOSSES
    known = read_json(file) if file.is_file() else {}  # written as a whole, or not at all
    tokenizer = AutoTokenizer.from_pretrained(made.plan.folder)
    texts = made.rows or [tokenizer(words)["input_ids"] for words in PROMPTS]
    job.begin(text("export.phase.measure"))

    def report(done: int, total: int, losses: Mapping[str, Mapping[str, float]]) -> None:
        write_json(file, losses)
        job.measured(done, total)
        job.go_on()

    return measure_losses(made.model, made.plan, texts, made.importance, report, known)


def name_model(job: ExportJob) -> str:
    """Return what the model is called in its file: of its base and run, in letters that every program takes.

    llama.cpp reads a tokenizer's habits out of a name with `phi-3` in it, and then loads no other kind.
    """
    leaf = job.facts.name.rstrip("/").rpartition("/")[2]
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", f"{leaf}-{job.record.name}").strip("-.") or "model"
    return re.sub(r"(?i)phi-?3", "phi", plain)[:80]


def read_rows(job: ExportJob, folder: Path) -> Sequence[PreviewRow]:
    """Return some of the rows that the run learned from; none where they are not there any more."""
    from transformers import AutoTokenizer

    from studio.data.preview import preview

    try:
        spec = RunFolder(job.run_folder).read_recipe().data
        return preview(spec, AutoTokenizer.from_pretrained(folder), rows=ROWS).rendered
    except StudioError:
        return ()


def weigh(plan: FilePlan, model: Any, rows: list[list[int]]) -> dict[str, Any]:
    """Return how much each column of each matrix counts for these rows."""
    from studio.models.gguf.family_changes import group_inputs
    from studio.models.gguf.importance import measure_importance

    moved = {inner for inner, change in plan.family.changes.items() if change is group_inputs}
    kept = frozenset(one.inner for one in plan.tensors if one.inner not in moved and not one.part)
    return measure_importance(model, plan.tensors, rows, kept)


def _ask_llama_cpp(
    job: ExportJob, plan: FilePlan, path: Path, mix: TypeMix, wanted: FolderAnswers
) -> dict[str, float]:
    """Return how far the file is from its folder, as llama.cpp computes it: {"kl": nats a token}.

    Raises StudioError where it does not load, reads other tokens, renders another chat, or computes something else.
    """
    from transformers import AutoTokenizer

    from studio.models.gguf.header import refuse
    from studio.models.gguf.written import TEXTS

    tokenizer = AutoTokenizer.from_pretrained(plan.folder)
    chats = list(CHATS) if tokenizer.chat_template else []
    questions = {
        "texts": list(TEXTS),
        "chats": chats,
        "prompts": wanted.prompts,
        "vocabulary": plan.config["vocab_size"],
        "context": min(512, int(plan.config["max_position_embeddings"])),
    }
    try:
        answer = ask(path, questions)
    except LlamaCppError as error:
        raise refuse("llama_cpp", path.name, reason=str(error)[:300]) from error
    for words, found in zip(TEXTS, answer["tokens"], strict=True):
        if found != tokenizer.encode(words, add_special_tokens=False):
            raise refuse("tokens_differ", path.name, words=words[:40])
    for chat, found in zip(chats, answer["rendered"], strict=True):
        said = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        begin = tokenizer.bos_token or ""
        if found.removeprefix(begin) != said.removeprefix(begin):
            raise refuse("chat_differs", path.name, words=chat[0]["content"][:40])
    shown, packed = _measure(job, plan, path, answer["log_probabilities"], wanted)
    if shown > (SHARP if mix.usual in ("F16", "BF16") else 2 * packed + LEFT):
        raise refuse("llama_cpp_differs", path.name, kl=f"{shown:.3g}")
    return {"kl": shown}


def _measure(
    job: ExportJob, plan: FilePlan, path: Path, found: list[Any], wanted: FolderAnswers
) -> tuple[float, float]:
    """Return the largest KL from the folder's next token: of llama.cpp's, and of the packed weights in PyTorch."""
    from studio.models.gguf.written import load_written, read_written
    from studio.models.streamed_model import stream

    shares = wanted.list_kl(found)
    model = draw_dense(plan.folder)
    if model is None:
        model = load_written(plan, path, wanted.kind)
    else:
        stream(model, read_written(plan, path), job.go_on)
    opened = predict(model, wanted.prompts)
    packed = [
        float((one.exp() * (one - other)).sum()) for one, other in zip(wanted.shares, opened, strict=True)
    ]
    return max(shares, default=0.0), max(packed)


def load_lines(folder: str, base: str) -> tuple[str, ...]:
    """Return the commands that load the file in `folder`."""
    files = sorted(Path(folder).glob("*.gguf"))
    if not files:
        return ()
    stem = files[0].stem.lower()
    return (
        f"ollama create {stem} -f {str(Path(folder) / 'Modelfile')!r} && ollama run {stem}",
        f"lms import {str(files[0])!r}",
        f"llama-server -m {str(files[0])!r}",
    )


def _make_exporter(mix: TypeMix) -> Exporter:
    return Exporter(
        name=f"gguf_{mix.name.lower()}",
        size_bytes=lambda job: count_bytes(mix, job),
        memory_bytes=lambda job: memory_bytes(mix, job),
        write=lambda job: write(mix, job),
        load_lines=load_lines,
        find_problem=find_problem,
        place="computer",
        loss_kl=LOSS_KL[mix.name],
        checked_by="llama_cpp",
        merges=True,
    )


GGUFS = tuple(_make_exporter(mix) for mix in (FIT, *reversed(MIXES)) if mix.name != "BF16")
"""From the smallest to the largest, before them the one that is measured."""

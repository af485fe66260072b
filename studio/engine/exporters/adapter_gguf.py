"""The adapter alone as a GGUF file, which llama.cpp adds to a GGUF file of its base while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.engine.checkpoint import require_space
from studio.engine.exporters import adapter, gguf_file, merged
from studio.engine.exporters.exporter import Exporter, ExportJob
from studio.engine.exporters.folder_answers import FolderAnswers, open_plain
from studio.engine.exporters.streamed_merge import can_answer_streamed
from studio.models.gguf.adapter_file import CONFIG, find_unsaid, write_adapter
from studio.models.gguf.llama_cpp import LlamaCppError, ask, is_there
from studio.models.gguf.tensor_types import get_mix

if TYPE_CHECKING:
    import torch

FILE_SUFFIX = "-LoRA-F16.gguf"
CONTEXT_TOKENS = 512


def find_problem(job: ExportJob) -> Text | None:
    """Return why this result is no adapter that llama.cpp can add."""
    problem = adapter.find_problem(job) or gguf_file.find_problem(job)
    folder = job.run_folder / job.record.artifact
    if problem is not None or not (folder / CONFIG).is_file():
        return problem
    unsaid = find_unsaid(folder)
    return text("gguf.adapter_unsaid.why", setting=unsaid) if unsaid else None


def write(job: ExportJob) -> None:
    """Fill job.target with the file and a card.

    Where llama.cpp is there, it adds the file to the base in 16 bits, which lies on the disk meanwhile, and must
    compute what the adapter computes on it. Raises StudioError, ExportStopped or OSError.
    """
    from studio.engine.artifact import write_card

    problem = find_problem(job)
    if problem is not None:
        raise StudioError(text("export.no_adapter"), problem, text("export.no_adapter.fix"))
    job.begin(text("export.phase.write"))
    name = gguf_file.name_model(job)
    path = job.target / f"{name}{FILE_SUFFIX}"
    folder = job.run_folder / job.record.artifact
    held = write_adapter(folder, Path(job.facts.folder), name, path)
    job.begin(text("export.phase.check"))
    _compare(path, held)
    told = "The studio read it again. llama.cpp was not there to add it to its base."
    if is_there():
        require_space(job.target, 2 * job.facts.parameters)
        kl = _ask_llama_cpp(job, folder, path)
        told = f"llama.cpp added it to the base in 16 bits: {kl:.2g} nats a token from the trained model."
    card = write_card(job.facts, job.record).replace("library_name: peft", "library_name: gguf")
    use = (
        f"- llama.cpp: `llama-server -m BASE.gguf --lora {path.name}`, BASE a GGUF file of `{job.facts.name}`"
    )
    (job.target / "README.md").write_text(f"{card}\n`{path.name}`: {told}\n\n{use}\n", encoding="utf-8")


def _compare(path: Path, held: dict[str, torch.Tensor]) -> None:
    """Read the file again. Raises StudioError where it does not hold what was written."""
    import torch

    from studio.models.gguf.decode import decode
    from studio.models.gguf.header import read_header, refuse

    stored = read_header(path).tensors
    for name, wanted in held.items():
        if not torch.equal(decode(stored[name], torch.float16).reshape(wanted.shape), wanted):
            raise refuse("packed_wrong", path.name, tensor=name, share="?")


def _ask_llama_cpp(job: ExportJob, folder: Path, path: Path) -> float:
    """Return how far llama.cpp is from base and adapter in fp32, in nats a token; StudioError where it is far."""
    from studio.models.adapt import load_adapter
    from studio.models.gguf.header import refuse
    from studio.models.gguf.write import plan_file, write_file

    base, file = Path(job.facts.folder), job.target / "base.gguf"
    try:
        plan = plan_file(base, get_mix("F16"), "base", file.name)
        write_file(plan, file)
        model = open_plain(base, job.go_on)
        wanted = FolderAnswers.measure(load_adapter(model, folder).eval(), base)
        asked = {"prompts": wanted.prompts, "vocabulary": plan.config["vocab_size"], "adapter": str(path)}
        asked["context"] = min(CONTEXT_TOKENS, int(plan.config["max_position_embeddings"]))
        try:
            found = ask(file, asked)["log_probabilities"]
        except LlamaCppError as error:
            raise refuse("llama_cpp", path.name, reason=str(error)[:300]) from error
    finally:
        file.unlink(missing_ok=True)
    kl = max(wanted.list_kl(found), default=0.0)
    if kl > gguf_file.SHARP:
        raise refuse("llama_cpp_differs", path.name, kl=f"{kl:.3g}")
    return kl


def load_lines(folder: str, base: str) -> tuple[str, ...]:
    """Return the command that adds the file in `folder` to its base."""
    files = sorted(Path(folder).glob(f"*{FILE_SUFFIX}"))
    return (f"llama-server -m BASE.gguf --lora {str(files[0])!r}",) if files else ()


def size_bytes(job: ExportJob) -> int:
    """Return what the file takes: half of the adapter's own, which is stored in fp32, at most."""
    folder = job.run_folder / job.record.artifact
    weights = folder / "adapter_model.safetensors"
    return weights.stat().st_size if weights.is_file() else adapter.size_bytes(job)


def memory_bytes(job: ExportJob) -> int:
    """Return what the base takes that llama.cpp's answers are held against."""
    return merged.memory_bytes(job) if can_answer_streamed(job) else merged.whole_bytes(job)


ADAPTER_GGUF = Exporter(
    name="adapter_gguf",
    size_bytes=size_bytes,
    memory_bytes=memory_bytes,
    write=write,
    load_lines=load_lines,
    find_problem=find_problem,
    place="computer",
    checked_by="llama_cpp",
)

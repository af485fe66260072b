"""Before any weights: the data; what refuses a run for them takes no loading."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from studio_kernels._triton import hash_triton

from studio.core.facts import ModelFacts
from studio.core.i18n import text
from studio.engine.base_hash import hash_base
from studio.engine.oom_fallback import cap_memory
from studio.engine.rows import prepare_rows
from studio.engine.run_context import Prepared, Run
from studio.planning.run_plan import choose_device, memory_share


def prepare(run: Run, facts: ModelFacts) -> Prepared:
    """Read, convert and tokenise the data, and limit the memory that the run may use. Raises StudioError."""
    with run.phase("prepare"):
        recipe = run.recipe
        device, gpu = choose_device(run.machine, recipe)
        # Beside preparing and loading, which waits for disk and card.
        hashers = ThreadPoolExecutor(2)
        hashing = hashers.submit(hash_base, facts.folder, run.remembered)
        if gpu is not None:
            hashers.submit(hash_triton)
        hashers.shutdown(wait=False)  # a stop does not wait for them
        held_bytes = run.weights.held_bytes if run.weights else 0
        cap = cap_memory(device.value, memory_share(run.machine), held_bytes)
        budget_bytes = run.exits.enter_context(cap)
        tokenizer, data = prepare_rows(
            recipe,
            facts,
            run.data_cache,
            on_progress=lambda done, total: run.beat("prepare", run.record.steps, done),
            should_stop=run.should_stop,
        )
        if run.record.data_hash not in ("", data.facts.content_hash):
            run.warn(text("run.data_changed"))
        for warning in data.warnings:
            run.warn(warning)
    return Prepared(
        facts=facts, tokenizer=tokenizer, data=data, gpu=gpu, budget_bytes=budget_bytes, hashing=hashing
    )

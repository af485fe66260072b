"""What each form of export takes on the disk and in memory; without torch, so that screens can ask at once."""

from __future__ import annotations

from pathlib import Path

from studio.core.facts import BackendPlan, ModelFacts


def adapter_bytes(artifact: Path) -> int:
    """Return the bytes of the artefact's files."""
    return sum(path.stat().st_size for path in artifact.rglob("*") if path.is_file())


def adapter_memory_bytes(facts: ModelFacts, plan: BackendPlan) -> int:
    """Return what loading the base for the check takes of the processor's memory: nothing where a card loads it."""
    return facts.weight_bytes if plan.device.value == "cpu" else 0


def merged_bytes(facts: ModelFacts) -> int:
    """Return two bytes for each parameter."""
    return 2 * facts.parameters


def merged_memory_bytes(facts: ModelFacts) -> int:
    """Return the fp32 weights, and one fifth more for the merge."""
    return round(facts.parameters * 4 * 1.2)

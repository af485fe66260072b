"""Running again exactly: what differs today from what a run had, so that another result surprises nobody."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from studio.core.errors import StudioError
from studio.core.facts import MachineFacts
from studio.core.i18n import Text, literal, text
from studio.core.recipe import Recipe
from studio.core.run_record import RunRecord
from studio.data import remote
from studio.data.convert import convert
from studio.data.pipeline import source_of
from studio.machine.failures import refuse_system
from studio.models.catalog import inspect_model
from studio.models.file_hashes import hash_weights
from studio.planning.run_plan import choose_device


def find_differences(
    record: RunRecord, recipe: Recipe, machine: MachineFacts, cache: Path
) -> tuple[Text, ...]:
    """Return what differs now from what the run of `record` ran with: card, base, data, packages.

    Reads the base's weights and, where they changed, the data: some 2 s for 16 GB from a fast disk. Fetches nothing.
    """
    card = choose_device(machine, recipe)[1]
    found: list[Text] = []
    if record.packages and record.gpu != (card.name if card else ""):
        before, now = (
            literal(name) if name else text("again.processor") for name in (record.gpu, card and card.name)
        )
        found.append(text("again.gpu", before=before, now=now))
    found += _judge("base", record.base_hash, lambda: _hash_base(recipe))
    found += _judge("data", record.data_hash, lambda: _hash_data(recipe, cache))
    for name, before in sorted(record.packages.items()):
        now = machine.packages.get(name, "")
        if now != before:
            found.append(
                text(
                    "again.package", name=name, before=before, now=literal(now) if now else text("again.none")
                )
            )
    return tuple(found)


def _judge(part: str, before: str, ask) -> Iterator[Text]:
    """Yield what is to be said of a hash that a run had; nothing where it never had one."""
    if not before:
        return
    try:
        now = ask()
    except StudioError as error:
        yield text(f"again.{part}.gone", reason=error.what)
    except OSError as error:
        yield text(f"again.{part}.gone", reason=refuse_system(error).what)
    else:
        if now != before:
            yield text(f"again.{part}" if now else f"again.{part}.unknown")


def _hash_base(recipe: Recipe) -> str:
    facts = inspect_model(recipe.model.source, revision=recipe.model.revision)
    return hash_weights(facts.folder) if facts.folder else ""


def _hash_data(recipe: Recipe, cache: Path) -> str:
    """Return the hash as a run of `recipe` would record it; "" where something must be fetched first."""
    specs = [recipe.data, *(source_of(recipe.data, name) for name in recipe.data.mix)]
    if any(remote.is_remote(spec.source) and not remote.is_fetched(spec, cache) for spec in specs):
        return ""
    hashes = [convert(spec, cache).content_hash for spec in specs]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()

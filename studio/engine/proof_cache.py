"""Keeps what was proved of a model on a machine, so that the next run of the same need not prove it again.

That our decoder is right (2 to 3 s on an H200 for 135 million parameters in 30 layers), and that the model answers, and
is saved and read back as it was (the trial run's writing parts).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from studio import engine, models
from studio.core.codec import to_json
from studio.core.facts import BackendPlan, MachineFacts
from studio.core.recipe import Recipe
from studio.models import decoder
from studio.models.file_hashes import hash_settings
from studio.planning.learned_limits import Remembered, survey

PACKAGES = ("transformers", "peft", "bitsandbytes", "tokenizers", "safetensors")
"""Whose code is at work, beside what a kernel's verdict hangs on."""
ROOMS = {"decoder": (models, decoder), "writing": (models, decoder, engine)}
"""Packages whose modules each proof hangs on."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What such a proof hangs on in one run: weights, configuration, arithmetic, versions and card."""

    remembered: Remembered | None
    machine: MachineFacts
    gpu: str
    """Name of the card; "" for the processor."""
    recipe: Recipe
    plan: BackendPlan
    model_folder: Path
    hash_base: Callable[[], str]
    """Returns the hash of the base's weights, once it is known."""

    def holds(self, of: str = "decoder") -> bool:
        """Return whether an earlier run proved this `of` the same: see key(). Waits for the base's hash."""
        if self.remembered is None or self.recipe.model.adapter:  # whose files may have changed
            return False
        return self.key(of) in self.remembered.read().proofs

    def key(self, of: str = "decoder") -> str:
        """Return a hash of all that the proof of the `decoder`, or the `writing` of the trial run, hangs on.

        What layers keep is not among it: that changes in mid-run, too.
        """
        plan, more = self.plan, {}
        if of == "writing":
            more = {"template": self.recipe.data.template, "optimizer": plan.optimizer.value}
        parts = more | {
            "of": of,
            "base": self.hash_base(),
            "settings": hash_settings(self.model_folder),
            "adapter": to_json(self.recipe.adapter),
            "plan": [
                part.value for part in (plan.dtype, plan.quantization, plan.attention, plan.fp8, plan.rope)
            ],
            "kernels": {op: choice.value for op, choice in plan.kernels.items()},
            "surroundings": to_json(survey(self.machine, self.gpu)),
            "packages": {name: self.machine.packages.get(name, "") for name in PACKAGES},
            "code": [hashlib.sha256(file.read_bytes()).hexdigest() for file in _list_code(of)],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _list_code(of: str) -> list[Path]:
    """Return the modules of ROOMS[of]."""
    return [file for room in ROOMS[of] for file in sorted(Path(room.__file__).parent.rglob("*.py"))]

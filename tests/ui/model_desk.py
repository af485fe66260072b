"""A desk whose fits are the real ones, for an RTX 3060 that is not there: for the tests of Model tab and Run card."""

from __future__ import annotations

from dataclasses import dataclass, field

from studio.core.facts import MachineFacts
from studio.services.model_library import Fits
from tests.machine.facts import make_gpu, make_machine
from tests.ui.conftest import FakeDesk, FakeHealth

RTX_3060 = make_machine(make_gpu(12, (8, 6), "RTX 3060"))


@dataclass
class CardHealth(FakeHealth):
    """Answers for a machine with a graphics card."""

    facts: MachineFacts = RTX_3060

    def machine(self) -> MachineFacts:
        return self.facts

    now = machine

    def add_experience(self, machine: MachineFacts, recipe: object) -> MachineFacts:
        return machine


@dataclass
class CardDesk(FakeDesk):
    """FakeDesk with real Fits."""

    health: CardHealth = field(default_factory=CardHealth)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fits = Fits(self.workspace, self.health, self.datasets, self)

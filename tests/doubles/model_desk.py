"""A desk whose fits are the real ones, for an RTX 3060 that is not there: for the tests of Model tab and Run card."""

from __future__ import annotations

from dataclasses import dataclass, field

from studio.core.facts import MachineFacts
from studio.services.model_library import ModelLibrary
from tests.machine.facts import make_gpu, make_machine
from tests.ui.conftest import FakeDesk, FakeMachineState

RTX_3060 = make_machine(make_gpu(12, (8, 6), "RTX 3060"))


@dataclass
class CardMachine(FakeMachineState):
    """Answers for a machine with a graphics card."""

    known_facts: MachineFacts = RTX_3060

    def facts(self) -> MachineFacts:
        return self.known_facts

    now = facts

    def add_experience(self, machine: MachineFacts, recipe: object) -> MachineFacts:
        return machine


@dataclass
class CardDesk(FakeDesk):
    """FakeDesk with real ModelLibrary."""

    machine: CardMachine = field(default_factory=CardMachine)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.models = ModelLibrary(self.workspace, self.machine, self.datasets, self)

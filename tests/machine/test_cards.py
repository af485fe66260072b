"""Which of several cards trains: the freest, of about as free ones the fastest; under which number torch knows it."""

import dataclasses
import sys
from types import SimpleNamespace

import pytest

from studio.core.facts import Gpu
from studio.core.i18n import LANGUAGES, load_catalogue
from studio.machine import cards
from studio.machine.cards import choose_card, explain_card, look_at_memory, name_card, number_card
from studio.planning.run_plan import choose_device, limit_memory, memory_budget, plan
from tests.machine.facts import make_decoder, make_machine, make_recipe
from tests.machine.test_nvml import FakeNvml

GIB = 2**30


def card(name="NVIDIA H200", gib=140, free=0, capability=(9, 0), **values):
    return Gpu(name=name, vram_bytes=gib * GIB, free_bytes=int(free * GIB), capability=capability, **values)


H200_HELD, H200_IDLE = card(free=22), card(free=139)
RTX_4090 = card("NVIDIA GeForce RTX 4090", 24, 22.5, (8, 9), display=True)
P40 = card("Tesla P40", 24, 23.9, (6, 1), display=False)


@pytest.mark.parametrize(
    ("gpus", "number", "why"),
    [
        ((H200_HELD, H200_IDLE), 1, "freest_gpu"),
        ((H200_IDLE, H200_HELD), 0, "freest_gpu"),
        ((card(free=139), card(free=138.5)), 0, "freest_gpu"),
        ((card(free=139, display=True), card(free=138.5, display=False)), 1, "dark_gpu"),
        ((P40, RTX_4090), 1, "fastest_gpu"),  # 1.4 GiB less, and fourteen times as fast
        ((P40, dataclasses.replace(RTX_4090, free_bytes=3 * GIB)), 0, "freest_gpu"),
        ((card("NVIDIA GeForce RTX 3060", 12), card("NVIDIA GeForce RTX 3090", 24)), 1, "largest_gpu"),
        ((card(), card()), 0, "largest_gpu"),
    ],
)
def test_the_card_and_the_reason(gpus, number, why):
    machine = make_machine(*gpus, torch_cuda="12.6")
    device, gpu = choose_device(machine, make_recipe())
    assert gpu is gpus[number] and device.value == f"cuda:{number}" and number_card(machine, gpu) == number
    assert device.reason.id == f"plan.device.{why}" and name_card(machine, device.value) == gpu.name
    for catalogue in map(load_catalogue, LANGUAGES):
        said = catalogue.say(device.reason)
        assert gpus[1 - number].name in said and "{" not in said, "the card that is not used is named"


def test_the_card_stays_once_a_run_has_begun_on_it():
    # What torch may hold is less than what is free: the other card must not win by that in the same run.
    machine = make_machine(card(free=139), card(free=138))
    gpu = choose_card(machine)
    begun = limit_memory(machine, gpu, 100 * GIB)
    assert choose_device(begun, make_recipe())[0].value == "cuda:0"
    assert memory_budget(begun, choose_card(begun))[0] < 102 * GIB


def test_a_plan_reckons_with_what_is_free_now():
    held = make_machine(card(free=22))
    assert memory_budget(held, held.gpus[0])[0] == 22 * GIB
    alone = make_machine(card())
    assert memory_budget(alone, alone.gpus[0])[0] == int(0.9 * 140 * GIB)
    chosen = plan(make_machine(H200_HELD, H200_IDLE), make_recipe(), make_decoder())
    assert chosen.device.value == "cuda:1" and chosen.memory is not None


def test_a_card_of_another_maker_does_not_shift_the_number():
    amd = Gpu(name="AMD Radeon", vram_bytes=16 * GIB, capability=(0, 0), vendor="amd")
    machine = make_machine(H200_HELD, amd, H200_IDLE)
    assert choose_device(machine, make_recipe())[0].value == "cuda:1"


class Nvml(FakeNvml):
    """Two cards of 24 GiB; used: what is held of each."""

    used = (4 * GIB, 20 * GIB)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=24 * GIB, used=self.used[handle])


@pytest.fixture
def nvml(monkeypatch):
    fake = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def pair():
    return make_machine(card("NVIDIA L4", 24), card("NVIDIA L4", 24))


def test_free_memory_is_asked_anew_each_time(nvml):
    machine = pair()
    assert [gpu.free_bytes for gpu in look_at_memory(machine).gpus] == [20 * GIB, 4 * GIB]
    looked = look_at_memory(machine)
    assert explain_card(looked, choose_card(looked)).values["number"] == 0
    nvml.used = (23 * GIB, 0)
    assert choose_device(look_at_memory(machine), make_recipe())[0].value == "cuda:1"
    assert machine == pair(), "the facts that are kept are untouched"


@pytest.mark.parametrize(
    ("visible", "free", "chosen"),
    [("1,0", [4, 20], "cuda:1"), ("0", [20], "cuda:0"), ("GPU-b", [4], "cuda:0")],
)
def test_numbers_are_those_of_the_cards_that_cuda_sees(nvml, monkeypatch, visible, free, chosen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    seen = make_machine(*(card("NVIDIA L4", 24) for _ in free))
    machine = look_at_memory(seen)
    assert [gpu.free_bytes // GIB for gpu in machine.gpus] == free
    assert choose_device(machine, make_recipe())[0].value == chosen


def test_a_driver_that_counts_other_cards_tells_nothing(nvml):
    machine = make_machine(card("NVIDIA L4", 24))
    assert look_at_memory(machine) is machine
    assert look_at_memory(make_machine()) == make_machine()


def test_what_this_process_holds_is_free_to_its_run(nvml, monkeypatch):
    held = SimpleNamespace(is_initialized=lambda: True, memory_reserved=lambda index: (0, 18 * GIB)[index])
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=held))
    assert [gpu.free_bytes // GIB for gpu in look_at_memory(pair()).gpus] == [20, 22]
    held.is_initialized = lambda: False
    assert cards._own_bytes(1) == 0

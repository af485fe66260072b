"""Collects MachineFacts: looks at the system, and probes in child processes of what could hang or crash."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from studio.core.codec import to_json
from studio.core.facts import Distribution, Gpu, KernelTest, MachineFacts, Tool
from studio.machine.facts_cache import keep_facts, read_kept, stamp
from studio.machine.probes import (
    assemblers,
    graphics,
    interpreter,
    library_conflicts,
    machine,
    packages,
    paths,
    variables,
    windows,
    wsl,
)
from studio.machine.probes.child import ChildAnswer, run_child
from studio.machine.probes.hub import ask_hub
from studio.machine.probes.probe_context import ProbeContext, survey
from studio.machine.settings import read_settings
from studio.machine.versions import gate
from studio.machine.workspace import Workspace
from studio.machine.wsl import ask_running, list_distributions

LOOKS: tuple[Callable[[ProbeContext], dict[str, Any]], ...] = (
    machine.look,
    interpreter.look,
    variables.look,
    paths.look,
    packages.look,
    assemblers.look,
    library_conflicts.look,
    graphics.look,
    windows.look,
    wsl.look,
)
"""Each returns fields of MachineFacts; together they take 0.1 s."""
TORCH = "studio.machine.probes.torch_import"
TRITON = "studio.machine.probes.triton_levels"
BITSANDBYTES = "studio.machine.probes.bitsandbytes_load"
KERNELS = "studio_kernels.self_test"
ANY_CARD = "cuda:80"
"""What is compiled for where there is no card: a foreign assembler shows there, too."""
GUEST_S = 10.0
"""For a Linux of WSL that is awake: its answer takes a second."""


def look_around(
    environment: Mapping[str, str] = os.environ, workspace_root: Path | None = None
) -> MachineFacts:
    """Return the facts that cost nothing: no library is loaded, torch, Triton and bitsandbytes are not tried.

    `environment` is what processes get; earlier repairs in it are undone for MachineFacts.environment. Takes 0.1 s, and
    5 to 20 s where NVIDIA's driver hangs. `gpus` are in the order of CUDA_DEVICE_ORDER=PCI_BUS_ID, NVIDIA's first,
    without those that CUDA_VISIBLE_DEVICES hides.
    """
    here = survey(environment, workspace_root)
    facts: dict[str, Any] = {}
    for look in LOOKS:
        facts |= look(here)
    return MachineFacts(**facts)


def detect(
    *,
    environment: Mapping[str, str] = os.environ,
    workspace_root: Path | None = None,
    cache: Path | None = None,
    timeout_s: float = 60.0,
    fresh: bool = False,
    hub: bool = False,
    importable: Callable[[bool], None] = lambda known: None,
    hurry: Callable[[], bool] | None = None,
) -> MachineFacts:
    """Return all facts of this machine; every library is probed in a child that gets `environment` and `timeout_s`.

    What the probes found is kept in the file `cache` and holds until something that it depends on changes or `fresh`
    asks anew; an answer that did not come in time is not kept. Takes 0.1 s with kept answers, 3 to 8 s without a GPU,
    some 20 s with one. The hub is asked only with `hub`. `importable` is told as soon as it is known whether torch and
    Triton can be imported here, which is long before the kernels are proved; it may be told again.

    `hurry`: for who proves kernels by itself before they are used. Once it says so, the kernels' test ends as soon as
    those have passed that nothing else proves, and none was wrong; what is kept then serves only who gives `hurry`.
    """
    facts = look_around(environment, workspace_root)
    key = stamp(facts)
    found = None if fresh or cache is None else read_kept(cache, key)
    if found is None or (found.get("cut") and hurry is None):
        found, complete = probe(
            facts, environment, timeout_s, fresh=fresh, importable=importable, hurry=hurry
        )
        if cache is not None and complete:
            keep_facts(cache, key, found)
    facts = fill(facts, found)
    importable(not facts.torch_error and not (facts.triton_level == "installed" and facts.triton_error))
    if hub:
        root = facts.places["workspace"].path if "workspace" in facts.places else ""
        mirror = read_settings(Workspace(Path(root))).get("hub_endpoint", "") if root else ""
        said, endpoint = ask_hub(mirror, environment=environment)
        facts = dataclasses.replace(facts, hub=said, hub_endpoint=endpoint)
    return facts


def probe(
    facts: MachineFacts,
    environment: Mapping[str, str],
    timeout_s: float,
    *,
    fresh: bool = False,
    importable: Callable[[bool], None] = lambda known: None,
    hurry: Callable[[], bool] | None = None,
) -> tuple[dict[str, Any], bool]:
    """Return (what the probes found, as JSON data; whether all of them answered in time).

    torch is imported once without a GPU, and a second time by the kernels' test with one. `importable`, `hurry`: as in
    detect.
    """
    said: dict[str, Any] = {}

    def hear(part: Mapping[str, Any]) -> None:
        said.update(part)
        if "torch_sees_gpu" in said and (facts.triton_level == "absent" or "triton_level" in said):
            importable(True)

    def is_enough(part: Mapping[str, Any]) -> bool:
        from studio_kernels import TESTED_ALONE

        done = _drop_begun(part.get("kernel_tests", ()))
        passed = {test["op"] for test in done if test["ok"]}
        return hurry() and len(passed) == len(done) and passed >= {*TESTED_ALONE}

    def run(module: str, *arguments: str, **extra: str) -> ChildAnswer:
        enough = is_enough if module == KERNELS and hurry is not None else None
        variables = {**environment, **extra}
        return run_child(
            module, arguments, timeout_s=timeout_s, environment=variables, heard=hear, enough=enough
        )

    def import_torch() -> ChildAnswer:
        words = ["bitsandbytes"] if quantizes else []
        answer = run(TORCH, *words)
        # From a slow or busy disk 2 GiB of libraries may take longer than the limit; then they are in memory.
        return run(TORCH, *words) if answer.timed_out else answer

    on_gpu = bool(facts.gpus) and bool(facts.torch_cuda or facts.torch_hip or facts.torch_xpu)
    quantizes = on_gpu and "bitsandbytes" in facts.packages
    with ThreadPoolExecutor(max_workers=3) as pool:
        linux = pool.submit(_list_linux) if facts.windows is not None else None
        torch = pool.submit(import_torch)
        triton = pool.submit(_probe_triton, facts, run, on_gpu, fresh)
        loads = pool.submit(run, BITSANDBYTES) if "bitsandbytes" in facts.packages and not on_gpu else None
    answers = [torch.result(), *triton.result()]
    found = _read_torch(facts, torch.result(), quantizes) | _read_triton(triton.result())
    if linux is not None:
        state, distributions = linux.result()
        found |= {"wsl_state": state, "distributions": [to_json(one) for one in distributions]}
    if loads is not None:
        answers.append(loads.result())
        found["bitsandbytes_error"] = loads.result().error
    return found, not any(answer.timed_out for answer in answers)


def fill(facts: MachineFacts, found: Mapping[str, Any]) -> MachineFacts:
    """Return `facts` with what the probes found."""
    values = {name: found[name] for name in FOUND if name in found}
    if found.get("torch_architectures"):
        values["torch_architectures"] = tuple(found["torch_architectures"])
    if found.get("triton_assembler"):
        values["triton_assembler"] = Tool(**found["triton_assembler"])
    if found.get("kernel_tests"):
        values["kernel_tests"] = tuple(KernelTest(**test) for test in found["kernel_tests"])
    devices = [Gpu(capability=(0, 0), **device) for device in found.get("devices", ())]
    if devices:  # torch knows the chips of AMD and Intel better than the system does
        known = {gpu.vendor for gpu in devices}
        values["gpus"] = (*(gpu for gpu in facts.gpus if gpu.vendor not in known), *devices)
    if facts.windows is not None and "wsl_state" in found:
        distributions = tuple(Distribution(**one) for one in found["distributions"])
        values["windows"] = dataclasses.replace(
            facts.windows, wsl_state=found["wsl_state"], distributions=distributions
        )
    return dataclasses.replace(facts, **values)


FOUND = (
    "torch_error",
    "torch_cuda",
    "torch_hip",
    "torch_xpu",
    "torch_sees_gpu",
    "processor_rate",
    "triton_level",
    "triton_error",
    "triton_compiler",
    "bitsandbytes_error",
)
"""Fields that the probes hand over as they are."""


def choose_targets(facts: MachineFacts) -> tuple[str, ...]:
    """Return what Triton is to compile for: every chip here that our kernels take, as `cuda:89` or `hip:gfx1100`."""
    nvidia = {gpu.capability for gpu in facts.gpus if gpu.vendor == "nvidia" and gpu.capability > (0, 0)}
    suited = {pair for pair in nvidia if pair >= gate("triton")} or nvidia
    if suited:
        return tuple(f"cuda:{major}{minor}" for major, minor in sorted(suited))
    chips = [gpu.architecture for gpu in facts.gpus if gpu.architecture]
    if chips and facts.torch_hip:
        return (f"hip:{chips[0]}",)
    return () if facts.torch_hip or facts.torch_xpu else (ANY_CARD,)


def _list_linux() -> tuple[str, tuple[Distribution, ...]]:
    state, found = list_distributions()
    return state, ask_running(found, timeout_s=GUEST_S)


def _probe_triton(
    facts: MachineFacts, run: Callable[..., ChildAnswer], on_gpu: bool, fresh: bool
) -> tuple[ChildAnswer, ...]:
    """Return how far Triton gets, and how its kernels do where they can run; nothing where it is absent."""
    if facts.triton_level == "absent":
        return ()
    nvidia = any(gpu.vendor == "nvidia" for gpu in facts.gpus)
    # A kernel compiled earlier would hide a compiler that fails today.
    always = {"TRITON_ALWAYS_COMPILE": "1"}
    words = [*(["--helper"] if nvidia else []), *(["--torch"] if facts.torch_hip else [])]
    # Beside each other: what the kernels' test says counts only where the compiler was found to work.
    with ThreadPoolExecutor(max_workers=1) as pool:
        kernels = pool.submit(run, KERNELS, **(always if fresh else {})) if on_gpu else None
        first = run(TRITON, *words, *choose_targets(facts), **always)
    if kernels is None or first.error or first.facts.get("triton_level") != "compiles":
        return (first,)
    return first, kernels.result()


def _read_torch(facts: MachineFacts, answer: ChildAnswer, quantizes: bool) -> dict[str, Any]:
    found = dict(answer.facts)
    if found.pop("stage", "") == "bitsandbytes":
        return found | {"bitsandbytes_error": answer.error}
    if not answer.error:
        return found
    reason = {"bitsandbytes_error": "PyTorch cannot be imported."} if quantizes else {}
    return found | {"torch_error": answer.error if "torch" in facts.packages else ""} | reason


def _drop_begun(tests: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the kernels' tests without one that was only begun."""
    from studio_kernels import BEGUN

    return [test for test in tests if test["reason"] != BEGUN]


def _read_triton(answers: tuple[ChildAnswer, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for answer in answers:
        found |= answer.facts
        if answer.cut:
            done = _drop_begun(answer.facts["kernel_tests"])
            found |= {"kernel_tests": done, "triton_level": "right", "cut": True}
        if answer.error:
            found["triton_error"] = answer.error
    failed = [test for test in found.get("kernel_tests", ()) if not test["ok"]]
    if failed and found.get("triton_level") != "right" and not found.get("triton_error"):
        found["triton_error"] = f"{failed[0]['op']}: {failed[0]['reason']}"
    return found

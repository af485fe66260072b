"""Finds out which known failure an error is. Standard library only: it must work when nothing installs."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType

from studio.core.errors import StudioError
from studio.core.events import Diagnosis, Fix
from studio.core.facts import MachineFacts
from studio.core.i18n import literal, text
from studio.core.recipe import Recipe
from studio.machine.failures.causes import (
    chat_templates,
    command_line,
    containers,
    data_files,
    distributed,
    driver_modules,
    gguf_conversion,
    git_repositories,
    gpu_driver,
    gpu_libraries,
    harmless,
    hub_access,
    hub_names,
    incomplete_packages,
    literal_values,
    memory,
    model_loading,
    model_serving,
    native_builds,
    native_parts,
    network,
    numerics,
    other_devices,
    package_checks,
    patched_packages,
    peft_trl,
    pip_install,
    plain_messages,
    processes,
    program_settings,
    program_start,
    python_environment,
    python_values,
    resuming,
    storage,
    system_packages,
    tensor_shapes,
    toolchain,
    torch_operations,
    training_settings,
    triton_kernels,
    unspecific,
    version_drift,
    web_window,
    wrong_objects,
    wsl,
)
from studio.machine.failures.error_text import Reading
from studio.machine.failures.evidence import LINE_LIMIT, CauseVerdict, line_at, weigh
from studio.machine.failures.failure import Failure
from studio.machine.failures.system_codes import spell_out

CATALOGUE: tuple[Failure, ...] = (
    *harmless.FAILURES,
    *web_window.FAILURES,
    *processes.FAILURES,
    *distributed.FAILURES,
    *memory.FAILURES,
    *peft_trl.FAILURES,
    *resuming.FAILURES,
    *program_start.FAILURES,
    *native_parts.FAILURES,
    *tensor_shapes.FAILURES,
    *training_settings.FAILURES,
    *triton_kernels.FAILURES,
    *gpu_libraries.FAILURES,
    *toolchain.FAILURES,
    *other_devices.FAILURES,
    *driver_modules.FAILURES,
    *gpu_driver.FAILURES,
    *containers.FAILURES,
    *wsl.FAILURES,
    *system_packages.FAILURES,
    *command_line.FAILURES,
    *pip_install.FAILURES,
    *python_environment.FAILURES,
    *native_builds.FAILURES,
    *model_serving.FAILURES,
    *gguf_conversion.FAILURES,
    *git_repositories.FAILURES,
    *hub_names.FAILURES,
    *hub_access.FAILURES,
    *network.FAILURES,
    *storage.FAILURES,
    *numerics.FAILURES,
    *model_loading.FAILURES,
    *chat_templates.FAILURES,
    *data_files.FAILURES,
    *literal_values.FAILURES,
    *wrong_objects.FAILURES,
    *version_drift.FAILURES,
    *incomplete_packages.FAILURES,
    *unspecific.FAILURES,
    *torch_operations.FAILURES,
    *patched_packages.FAILURES,
    *plain_messages.FAILURES,
    *python_values.FAILURES,
    *program_settings.FAILURES,
    *package_checks.FAILURES,
)
"""Of equal evidence the first one wins: what stops everything stands before what may follow from it."""
ENTRIES: Mapping[str, Failure] = {failure.id: failure for failure in CATALOGUE}
ORDER = {"blocked": 0, "degraded": 1, "note": 2}
COLOURS = re.compile(r"#0(?:15\b|33\[[\d;]*m)|\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
STAMPS = re.compile(
    r"^(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d{1,9})?Z?\]?(?: ?-| ?\|)?(?: ?\[?(?:ERROR|INFO|"
    r"WARNING|CRITICAL|FATAL)\]?"
    r"(?: ?-| ?\||:)?)? ?|\[rank\d+\]: ?)",
    re.MULTILINE,
)
"""What a logger or torchrun writes before each line."""
TWICE = re.compile(r"\b(\w{1,40}(?:Error|Exception))\1: : ?")
"""An exception's name that two processes wrote at once."""
CURLY = re.compile(r"\u2018([\w./-]{1,80})\u2019")
"""A name in the marks that a text program puts in place of plain ones."""
TROUBLE = re.compile(
    r"error|exception|fatal|fail|traceback|cannot|could not|abort|crash|\bkilled\b", re.IGNORECASE
)

TELLING = re.compile(
    "error|exception|traceback|has no attribute|unexpected keyword|"
    "fail|fatal|abort|cannot|can't|could not|couldn't|unable|invalid|denied|killed|not found|"
    "missing|interrupt|crash|panic|refused|timed? ?out|conflict|mismatch|incompatible|unsupported|not supported|"
    "unexpected|too short|is not iterable|"
    "unrecognized|undefined|no such|does not exist|exceeded|corrupt|core dumped|stack trace|"
    "exit(?:ed)? (?:with )?(?:code|"
    "status):? -?[1-9]|did not run success|returned non-zero|"
    "0x[8c][0-9a-f]{7}|\\bnan\\b|fehl|unerwartet|erreur|errore|erro\\b|falha|fallo\\b|\u00e9chec|"
    "\u043e\u0448\u0438\u0431\u043a|"
    "\u9519\u8bef|\u5931\u8d25|\u5f02\u5e38|\u65e0\u6cd5|\u627e\u4e0d\u5230|"
    "\u62a5\u9519|\u62d2\u7edd|\u30a8\u30e9\u30fc|\uc624\ub958",
    re.IGNORECASE,
)
"""A word of this kind stands in every error text, in the languages that the catalogue has seen."""


@dataclass(frozen=True, slots=True)
class Found:
    """A failure that the facts of a machine show before a run meets it."""

    failure: Failure
    values: Mapping[str, object]
    """For the blanks of the words; `evidence` is the line that proves it."""

    def diagnose(self, recipe: Recipe | None = None) -> Diagnosis:
        """Return it in words."""
        return self.failure.diagnose(self.values, recipe)


def find_failures(machine: MachineFacts) -> tuple[Found, ...]:
    """Return what is wrong with `machine`, the worst first, each failure once.

    What a native library said when it was tried (`torch_error`, `triton_error`, ...) counts like the probes' facts.
    Nothing is said of Triton where it was proved right.
    """
    finds: dict[str, Mapping[str, object]] = {}
    for failure in CATALOGUE:
        values = failure.probe(machine) if failure.probe else None
        if values is not None:
            finds[failure.id] = {"line": values["evidence"], **values}
    for words, mine, otherwise in _observed(machine):
        verdict = weigh_text(words)
        entry, values = (
            (verdict.first.entry, verdict.first.values)
            if verdict
            else (ENTRIES[otherwise], {"line": last_line(words)})
        )
        # A probe that knows the reason says more than words that only say what followed from it.
        if entry.id in finds:
            continue
        if not any(entry in group.FAILURES for group in mine):
            entry = ENTRIES[otherwise]
        explained = any(failure.id in finds for failure in _reasons(mine, otherwise))
        if not (explained and entry.id in (otherwise, "triton_absent", "triton_pair")):
            finds[entry.id] = {"evidence": values["line"], **values}
    order = sorted(finds, key=lambda id: ORDER[ENTRIES[id].severity])
    return tuple(Found(ENTRIES[id], finds[id]) for id in order)


def _observed(machine: MachineFacts) -> Iterator[tuple[str, tuple[ModuleType, ...], str]]:
    """Yield (what was said, the groups that it may belong to, the entry that it is when none of these knows it)."""
    if machine.torch_error:
        yield (
            machine.torch_error,
            (gpu_driver, gpu_libraries, python_environment, memory, unspecific),
            "torch_fails",
        )
        return
    if machine.triton_error and machine.triton_level not in ("absent", "right"):
        yield machine.triton_error, (triton_kernels, toolchain, gpu_driver, wsl), "kernel_compile"
    # Without a card there is nothing that bitsandbytes would be used for.
    if machine.bitsandbytes_error and machine.gpus and machine.torch_sees_gpu is not False:
        yield machine.bitsandbytes_error, (gpu_libraries, gpu_driver, wsl), "bitsandbytes_library"


def _reasons(groups: tuple[ModuleType, ...], otherwise: str) -> list[Failure]:
    """Return the entries of `groups` that explain why something cannot be used; of torch, only what it needs itself."""
    every = [failure for group in groups for failure in group.FAILURES]
    if otherwise == "torch_fails":
        return [failure for failure in every if failure.severity == "blocked" or failure.id == "intel_hang"]
    return [failure for failure in every if failure.severity != "note"]


def diagnose(
    error: BaseException | str, machine: MachineFacts | None = None, recipe: Recipe | None = None
) -> Diagnosis:
    """Return what an exception, or an error text or log, means and what helps.

    An exception's causes count as well; one with an attribute `failure_id` names its entry itself. A StudioError
    speaks for itself (id `refused`). Lines known to be harmless are left out of a text first; one with nothing else
    is `harmless`. What is not known says so with its last line (id `unknown`), never a guess. With `recipe`, the
    fixes carry the changes that suit it; those that the `machine` rules out are left away.
    """
    if isinstance(error, StudioError):
        return Diagnosis(id="refused", what=error.what, why=error.why, fixes=(Fix(title=error.fix),))
    chain = tuple(_chain(error)) if isinstance(error, BaseException) else ()
    for link in chain:
        entry = ENTRIES.get(getattr(link, "failure_id", ""))
        if entry is not None:
            return _suit(entry.diagnose({"line": last_line(str(link))}, recipe), machine)
    # The outermost exception that is known wins: an inner one may be a mere attempt that was given up.
    said = [_told(link) for link in chain] or [clean(str(error))]
    for words in said:
        verdict = weigh_text(words)
        # A last resort speaks of a program of the person's own; an exception at hand was raised in a run of ours.
        if verdict is not None and not (chain and verdict.first.entry.last_resort):
            return _suit(verdict.first.entry.diagnose(verdict.first.values, recipe), machine)
    rest, left_out = leave_out_harmless(said[0])
    if left_out is not None and not chain and not TROUBLE.search(rest):
        return Diagnosis(
            id="harmless",
            what=text("failure.harmless"),
            why=text(f"failure.{left_out[0].id}.why", line=left_out[1]),
            fixes=(Fix(title=text("failure.fix.nothing")),),
        )
    return Diagnosis(
        id="unknown",
        what=text("failure.unknown"),
        why=literal(telling_line(rest if left_out is not None and rest.strip() else said[0])),
        fixes=(Fix(title=text("failure.fix.doctor")), Fix(title=text("failure.fix.look_at_log"))),
    )


def weigh_text(words: str) -> CauseVerdict | None:
    """Return what an error text or a log is a sign of; None where nothing is known. Harmless lines do not count."""
    rest, _ = leave_out_harmless(clean(words))
    return weigh(Reading(rest), CATALOGUE)


def code_of(diagnosis: Diagnosis) -> str:
    """Return the short name of a diagnosed failure, such as S2a; "" for what the catalogue does not know."""
    entry = ENTRIES.get(diagnosis.id)
    if entry is None and diagnosis.id == "harmless":
        entry = ENTRIES[diagnosis.why.id.split(".")[1]]
    return entry.code if entry is not None else ""


def refuse_system(error: OSError) -> StudioError:
    """Return a refusal of the system's (a full disk, a folder that may not be read) in our three sentences."""
    found = diagnose(error)
    return StudioError(found.what, found.why, found.fixes[0].title, exit_code=1)


def clean(words: str) -> str:
    """Return `words` without colours and time stamps, numbers spelt out; a progress bar's every state is a line."""
    plain = COLOURS.sub("", words).replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    return spell_out(STAMPS.sub("", CURLY.sub(r"'\1'", TWICE.sub(r"\1: ", plain))))


def telling_line(words: str) -> str:
    """Return the line to search for: of the exception that ended it, else the last one that tells of trouble."""
    reading = Reading(words)
    if reading.last is not None:
        lines = line_at(words, reading.last.start, reading.last.start), reading.last.message
        # A message may begin on the line below its type.
        bare = lines[0].rstrip(": ").endswith(reading.last.type)
        return f"{lines[0]} {lines[1].partition(chr(10))[0]}"[:LINE_LIMIT].strip() if bare else lines[0]
    told = [line.strip() for line in words.splitlines() if TELLING.search(line)]
    return told[-1][:LINE_LIMIT] if told else last_line(words)


def last_line(words: str) -> str:
    """Return the last line that says something: of a traceback its error, of an exception its first line."""
    lines = [line.strip() for line in words.splitlines() if line.strip(" \t^~-=")]
    if not lines:
        return "?"
    # A message may go on over many lines below "SomeError: ..."; that line says most.
    named = [
        line for line in lines if line.split(":")[0].endswith(("Error", "Exception", "Warning", "Interrupt"))
    ]
    return (named or lines)[-1][:LINE_LIMIT]


def _told(error: BaseException) -> str:
    """Return what Python would print of `error`: the places that it went through, its type and its message."""
    places = "".join(traceback.format_tb(error.__traceback__))
    return f"{places}{type(error).__name__}: {error}"


def leave_out_harmless(words: str) -> tuple[str, tuple[Failure, str] | None]:
    """Return `words` without the lines that are never a cause, and the first one left out with its entry."""
    first, spans, lower = None, [], words.lower()
    for entry in harmless.FAILURES:
        for found in entry.signature.finditer(words, lower):
            first = first or (entry, line_at(words, found.start(), found.end()))
            spans.append((words.rfind("\n", 0, found.start()) + 1, words.find("\n", found.end()) + 1))
    for start, end in sorted(set(spans), reverse=True):
        words = words[:start] + (words[end:] if end else "")
    return words, first


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and what it was raised from, each once."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _suit(diagnosis: Diagnosis, machine: MachineFacts | None) -> Diagnosis:
    """Leave away what cannot help on `machine`: 4 bits where bitsandbytes does not work."""
    if machine is None or not machine.bitsandbytes_error:
        return diagnosis
    fixes = tuple(
        fix for fix in diagnosis.fixes if fix.change.get("model.quantization") not in ("nf4", "int8")
    )
    return Diagnosis(id=diagnosis.id, what=diagnosis.what, why=diagnosis.why, fixes=fixes)

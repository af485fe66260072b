"""Reads from a traceback who called, who was called and what is lacking there."""

from __future__ import annotations

import re
from collections.abc import Mapping

from studio.machine.failures.causes.incomplete_packages import (
    IMPORT,
    INSIDE,
    MODULE_ATTRIBUTE,
    read_hollow,
    read_incomplete,
    read_lazy,
    read_mixed,
)
from studio.machine.failures.code_places import MODEL_CODE, PLACE, STANDARD
from studio.machine.failures.error_text import Raised, Reading
from studio.machine.failures.package_names import (
    KNOWN,
    LIBRARIES,
    METHODS,
    NAMESPACES,
    OWN_MODULES,
    REPLACED,
    owner_of,
    pip_name,
)

Values = Mapping[str, str] | None
STUDIO = re.compile(r"[\\/]studio[\\/](?:core|data|desk|engine|host|models|ui)[\\/]")
CALL = re.compile(
    r"(?P<call>[\w.<>]+)\(\) (?:got an unexpected keyword argument '(?P<name>\w+)'|got multiple values for "
    r"(?:keyword )?argument '(?P<twice>\w+)'|missing \d+ required (?:positional|"
    r"keyword-only) arguments?: '(?P<lacks>\w+)'|"
    r"takes (?:from )?\d+ (?:to \d+ )?positional arguments? but \d+ (?:was|were) given|"
    r"takes (?:at most|at least|exactly) \d+ (?:positional )?arguments? \(\d+ given\)|takes no arguments)"
)
HANDLE = re.compile(
    r"\b(?:fn|f|func|function|callback|hook|\w*init_fn|handler|method|target|_target|callable|wrapped|process|"
    r"compute_metrics|reward_func|self\.(?:fn|func|function|_target)|context\.run)\("
)
"""A line that calls what somebody handed over, under a name of its own."""
MAKING = re.compile(r"^[ \t>\d-]*(?:\w+ = |return )?([A-Z]\w{3,60})\($", re.MULTILINE)
"""A line of code that begins to make an object."""
MEMBER = re.compile(r"(?P<name>[A-Z][A-Z0-9_]+)(?:\. Did you mean: '\w+'\?)?")
"""All that Python says of an enumeration's member that is not there."""
ATTRIBUTE = re.compile(
    r"(?:'(?P<owner>[\w.]+)' object|type object '(?:[\w.]+\.)?(?P<kind>\w+)'|^(?P<plain>[A-Z]\w+)) "
    r"has no attribute ['`]?(?P<name>\w+)['`]?"
)
OWN_IMPORT = re.compile(
    r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)' \((?P<path>[^)\n]{2,300}\.py)\)"
)
MODULE = re.compile(r"No module named '?(?P<module>[\w.]+)")
LIGHTNING = re.compile(
    r"(?:on_(?:train|validation|fit|before|after)_\w+|configure_(?:optimizers|callbacks)|"
    r"training_step|validation_step)"
)
"""Functions that a program writes for Lightning, whose Trainer has the same name as that of transformers."""
OWN_CLASS = re.compile(
    r"(?!(?:Tensor|Parameter|DataFrame|Series|Namespace|Image|NoneType|AdamW)$)[A-Z]\w*[a-z]\w*"
)
"""A class's name, but for those of plain values."""
OWN_NAMED = re.compile(r"(?:My|Our|Own|Custom)[A-Z]")
"""How people name a class of their own, whatever the rest of its name says."""
NO_MODEL = frozenset("BitsAndBytesConfig ModelConfig TrainingConfig DataConfig Config".split())
"""Settings that are none of a model's own."""
BUILT_IN = frozenset(
    "list dict str int float tuple bool set NoneType function method builtin_function_or_method".split()
)


def _package_of_call(raised: Raised, call: str) -> str:
    """Return the package that a call belongs to: by the class's name, else by where it was made."""
    named = next((owner for part in call.split(".") if (owner := owner_of(part))), "")
    if call.startswith("patch_") and any("unsloth" in frame.path for frame in raised.frames):
        return "unsloth"
    known = [package for package in raised.packages[:3] if package in LIBRARIES]
    # A plain function that was handed over belongs to whoever wrote it.
    if not named and "." not in call and call.islower() and HANDLE.search(raised.source):
        return ""
    inside = raised.packages[0] if raised.packages else ""
    if (
        not named
        and call.islower()
        and "." not in call
        and inside not in LIBRARIES
        and inside not in ("", "python", MODEL_CODE)
    ):
        return inside
    # PyTorch calls every layer; whoever patched or asked for this one comes before.
    return named or next((package for package in known if package != "torch"), known[0] if known else "")


def values_of(raised: Raised, name: str, package: str) -> dict[str, str]:
    """Return the values for the words: whose name it is, what replaced it, and which other package asked for it."""
    # A decorator of huggingface_hub or torch around another package's function asks for nothing itself.
    asking = _asking(raised)
    installed = asking[:1] not in ((), ("",), ("python",), (MODEL_CODE,)) and asking[0] not in OWN_MODULES
    asks = installed and asking[0] not in (package, "torch", "numpy")
    values = {"name": name, "package": package and pip_name(package), "new": REPLACED.get(name, "")}
    values["caller"] = pip_name(asking[0]) if asks else ""
    return values


def _made_last(reading: Reading, raised: Raised) -> str:
    """Return the class of a known package that the traceback was making last; a decorator hides it. "" for none."""
    made = [name for name in MAKING.findall(reading.words[: raised.start]) if owner_of(name)]
    return made[-1] if made else ""


def _read_call(reading: Reading) -> Values:
    """A call that does not fit what it calls; `package` is "" where the program's own function may be meant."""
    raised = reading.last
    found = CALL.search(raised.message) if raised and raised.type == "TypeError" else None
    if raised is None or found is None:
        return None
    call = found["call"].replace(".__init__", "")
    if call == "__init__":
        call = _made_last(reading, raised) or call
    name = found["name"] or found["twice"] or found["lacks"] or ""
    return {"call": call, **values_of(raised, name, _package_of_call(raised, call))}


def read_argument(reading: Reading) -> Values:
    """A call with an argument that the installed version does not have, or without one that it wants."""
    found = _read_call(reading)
    return found if found and found["package"] else None


def read_event(reading: Reading) -> Values:
    """A function behind a part of a Gradio page that takes another number of values than the page hands over."""
    raised, found = reading.last, _read_call(reading)
    by_page = raised is not None and "gradio" in raised.packages[:2] and HANDLE.search(raised.source)
    return found if found and by_page and not found["package"] and not in_studio(reading) else None


def read_own_argument(reading: Reading) -> Values:
    """A call of a function that belongs to no known package."""
    return None if read_argument(reading) or in_studio(reading) else _read_call(reading)


def in_studio(reading: Reading) -> bool:
    """Return whether the exception was raised in the studio's own code, whose faults are not the person's."""
    frames = reading.last.frames if reading.last else ()
    return bool(frames) and STUDIO.search(frames[-1].path) is not None


def read_adapter_argument(reading: Reading) -> Values:
    """A setting in an adapter's file that the installed peft does not know."""
    found = read_argument(reading)
    raised = reading.last
    if (
        not found
        or raised is None
        or not found["call"].endswith("Config")
        or "unexpected" not in raised.message
    ):
        return None
    by_peft = any(frame.package == "peft" for frame in raised.frames)
    return found if owner_of(found["call"]) == "peft" and (by_peft or not raised.frames) else None


def _asking(raised: Raised) -> tuple[str, ...]:
    """Return the packages that asked for an attribute: what answers itself that it lacks one asks for nothing."""
    answers = bool(raised.frames) and raised.frames[-1].function in ("__getattr__", "__getattribute__")
    return raised.packages[1:] if answers else raised.packages


def read_attribute(reading: Reading) -> Values:
    """An attribute that a package's module or class does not have in the installed version."""
    raised = reading.last
    if raised is None or raised.type != "AttributeError" or MODEL_CODE in raised.packages[:2]:
        return None
    module = MODULE_ATTRIBUTE.search(raised.message)
    if module:
        root = module["module"].partition(".")[0]
        # A package that nobody listed counts where another one asks for it.
        named = root in LIBRARIES or (
            raised.packages[:1] not in ((), ("",), ("python",)) and root not in OWN_MODULES
        )
        other = read_mixed(reading) or read_hollow(reading)
        return values_of(raised, module["name"], root) if named and not other else None
    member = MEMBER.fullmatch(raised.message.partition("\n")[0].strip())
    if member:
        return values_of(raised, member["name"], "")
    bare = re.fullmatch(r"_?[a-z]\w*_\w+", raised.message.strip())
    if bare and raised.frames and raised.frames[-1].function in ("__delattr__", "__getattr__"):
        asked = next((name for name in raised.packages if name in LIBRARIES and name != "torch"), "")
        return values_of(raised, bare[0], asked) if asked else None
    found = ATTRIBUTE.search(raised.message)
    # What a half built extension of DeepSpeed says when it is thrown away.
    if not found or found["name"].startswith("ds_opt_"):
        return None
    owner = found["owner"] or found["kind"] or found["plain"]
    if OWN_NAMED.match(owner):
        return None
    asking = _asking(raised)
    innermost = asking[0] if asking else ""
    hooked = owner == "Trainer" and any(LIGHTNING.fullmatch(frame.function) for frame in raised.frames)
    package = (
        "lightning"
        if hooked
        else METHODS.get(found["name"])
        or ("unsloth" if found["name"].startswith("unsloth_") else "")
        or owner_of(owner)
        or (innermost if innermost in LIBRARIES and owner not in BUILT_IN else "")
    )
    return values_of(raised, found["name"], package) if package else None


def read_config(reading: Reading) -> Values:
    """A value that a model's settings lack, asked for by code that is none of the packages that read them."""
    raised = reading.last
    found = ATTRIBUTE.search(raised.message) if raised and raised.type == "AttributeError" else None
    owner = (found["owner"] or found["plain"] or "") if found else ""
    if raised is None or found is None or in_studio(reading) or not raised.frames:
        return None
    of_model = owner.endswith("Config") and owner_of(owner) in ("", "transformers") and owner not in NO_MODEL
    outside = raised.packages[0] not in LIBRARIES and raised.packages[0] != "python"
    return values_of(raised, found["name"], "transformers") if of_model and outside else None


def read_own_attribute(reading: Reading) -> Values:
    """An attribute that an object of a class of nobody knows which package lacks."""
    found = _read_lacking(reading)
    return found if found and OWN_CLASS.fullmatch(found["kind"]) else None


def read_value_kind(reading: Reading) -> Values:
    """An attribute that a plain value lacks: the wrong kind of value, or a version that wants another kind."""
    return None if read_own_attribute(reading) else _read_lacking(reading)


def _read_lacking(reading: Reading) -> Values:
    """An attribute that a value of a class of no known package lacks."""
    raised = reading.last
    found = ATTRIBUTE.search(raised.message) if raised and raised.type == "AttributeError" else None
    owner = (found["owner"] or found["kind"] or "") if found else ""
    if raised is None or not found or owner in ("", "NoneType") or read_attribute(reading):
        return None
    if found["name"].startswith("ds_opt_") or (
        raised.frames and raised.packages[0] in ("trl", "peft", "unsloth")
    ):
        return None
    if read_model_code(reading):
        return None
    package = next((package for package in _asking(raised) if package in LIBRARIES), "")
    return {**values_of(raised, found["name"], package), "kind": owner}


def read_model_code(reading: Reading) -> Values:
    """Program code that came with a model and was written for another transformers."""
    raised = reading.last
    wrong = raised is not None and raised.type in (
        "AttributeError",
        "ImportError",
        "TypeError",
        "NameError",
        "KeyError",
    )
    # What an older version handed over as a number is a tensor now.
    wrong = wrong or (raised is not None and raised.message.startswith("Boolean value of Tensor with more"))
    return {"package": "transformers"} if wrong and raised and MODEL_CODE in raised.packages[:2] else None


def read_fork(reading: Reading) -> Values:
    """Code of adapter-transformers, which had itself installed over transformers."""
    frames = reading.last.frames[-3:] if reading.last else ()
    found = any(re.search(r"[\\/]transformers[\\/]adapters[\\/]", frame.path) for frame in frames)
    return {} if found else None


def _installed(path: str) -> bool:
    return bool(PLACE.search(path) or STANDARD.search(path))


def read_own_import(reading: Reading) -> Values:
    """A name that a file of the program itself lacks, asked for by another one of its files."""
    raised = reading.last
    found = OWN_IMPORT.search(raised.message) if raised and raised.type == "ImportError" else None
    if raised is None or found is None or _installed(found["path"]) or "circular import" in raised.message:
        return None
    root = found["module"].partition(".")[0]
    # A folder that was installed from its source is a package all the same.
    return (
        None if root in LIBRARIES or root.lower() in KNOWN else {"name": found["name"], "path": found["path"]}
    )


def read_import(reading: Reading) -> Values:
    """A name that a package does not have, or no longer has, in the installed version."""
    raised = reading.last
    if raised is None or raised.type not in ("ImportError", "ModuleNotFoundError", "RuntimeError"):
        return None
    found = IMPORT.search(raised.message)
    if found and (
        read_own_import(reading) or read_hollow(reading) or read_mixed(reading) or read_lazy(reading)
    ):
        return None
    if found:
        values = values_of(raised, found["name"], found["module"].partition(".")[0])
        return None if "circular import" in raised.message and values["package"] not in LIBRARIES else values
    part = INSIDE.search(raised.message)
    root, _, rest = part["module"].partition(".") if part else ("", "", "")
    apart = (
        read_incomplete(reading) is not None
        or root in OWN_MODULES
        or root in NAMESPACES
        or f"'{root}' is not a package" in raised.message
    )
    return values_of(raised, rest, root) if root and not apart else None

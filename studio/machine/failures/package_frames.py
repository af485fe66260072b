"""Reads what broke inside an installed package: by its version or by what it was given, the text alone does not say."""

from __future__ import annotations

import re
from collections.abc import Mapping

from studio.machine.failures.code_places import MODEL_CODE
from studio.machine.failures.conditions import read_condition
from studio.machine.failures.error_text import Reading
from studio.machine.failures.package_names import OWN_MODULES, owner_of, pip_name
from studio.machine.failures.traceback_calls import CALL, in_studio, read_argument

BREAKS = frozenset(
    "TypeError AttributeError IndexError KeyError UnboundLocalError NameError AssertionError ZeroDivisionError "
    "NotImplementedError StopIteration RecursionError".split()
)
"""What nobody raises to tell a person something: the package's own code met what it does not expect."""
GROUNDS = frozenset(("", "python", "torch", "numpy", "pandas", "pyarrow", MODEL_CODE))
"""What everybody calls: the package above it is the one to look at."""
LONGEST = 240
USED = re.compile(
    r"object of type '(?P<counted>\w+)' (?P<counts>has no len\(\))|"
    r"'(?P<kind>\w+)' object (?P<use>is not (?:subscriptable|iterable|callable|a mapping)|does not support item \w+)"
)
AXIS = re.compile(r"axis (?P<has>-?\d+) is out of bounds for array of dimension (?P<wants>\d+)")
SAVED = re.compile(r"\bcls\(\s*\*\*|\*\*_?(?:cls_|init_|saved_|hparams|config_)\w*")
"""A call whose arguments all come from what was saved."""
HOOKS = frozenset(
    "compute_loss log training_step prediction_step evaluation_loop evaluate create_optimizer create_scheduler "
    "_get_train_sampler _get_eval_sampler get_batch_samples get_train_dataloader _save_checkpoint _save "
    "create_optimizer_and_scheduler _prepare_inputs optimizer_step lr_scheduler_step _maybe_log_save_evaluate".split()
)
"""Functions of transformers' Trainer (and Lightning's) that it calls itself and that a class made from it overrides."""


def breaking_package(reading: Reading) -> tuple[str, str]:
    """Return (the package whose code broke, the one that called it), as pip names them; "" for none."""
    raised = reading.last
    if raised is None or raised.wraps or in_studio(reading) or not raised.frames:
        return "", ""
    # The program's own code below a package's is a function that it handed over.
    order = [name for name in raised.packages if name != "python"]
    if not order or order[0] in ("", MODEL_CODE):
        return "", ""
    # What lies in site-packages is a package, known here or not.
    known = [name for name in order if name not in GROUNDS and name not in OWN_MODULES]
    named = [pip_name(name) for name in known[:2]] + ["", ""]
    return named[0], named[1]


def read_inside(reading: Reading) -> Mapping[str, str] | None:
    """An exception that a package's own code did not mean to raise."""
    raised = reading.last
    package, caller = breaking_package(reading)
    if raised is None or not package or raised.type not in BREAKS or raised.on_purpose:
        return None
    # A condition that can be read says more than that it did not hold.
    if raised.message.startswith("assert ") and read_condition(raised.message) is not None:
        return None
    says = raised.message.partition("\n")[0] or raised.source
    return {"package": package, "caller": caller, "says": f"{raised.type}: {says}"[:LONGEST]}


def read_use(reading: Reading) -> Mapping[str, str] | None:
    """An object of a known package's class that is used in a way that it does not allow."""
    raised = reading.last
    used = USED.match(raised.message) if raised is not None and raised.type == "TypeError" else None
    kind = (used["kind"] or used["counted"]) if used else ""
    package = owner_of(kind)
    if raised is None or used is None or not package or in_studio(reading):
        return None
    return {"kind": kind, "package": pip_name(package), "says": used["use"] or used["counts"]}


def read_index(reading: Reading) -> Mapping[str, str] | None:
    """A list that is shorter than the program's own line expects."""
    raised = reading.last
    if raised is None or raised.type != "IndexError" or in_studio(reading):
        return None
    own = raised.packages[:1] in ((), ("",)) and re.match(
        r"(?:list|tuple|string|index)\b[^\n]* out of (?:range|bounds)", raised.message
    )
    return {"says": (raised.source or raised.message)[:LONGEST]} if own else None


def read_axis(reading: Reading) -> Mapping[str, str] | None:
    """An array that has fewer dimensions than the code asks for."""
    raised = reading.last
    found = AXIS.search(raised.message) if raised is not None and not in_studio(reading) else None
    return found.groupdict() if found else None


def read_override(reading: Reading) -> Mapping[str, str] | None:
    """What a trainer hands to one of its functions that a class of another package, or the program's own, overrides."""
    raised = reading.last
    found = CALL.search(raised.message) if raised and raised.type == "TypeError" else None
    kind, _, hook = found["call"].rpartition(".") if found else ("", "", "")
    if raised is None or not found or hook not in HOOKS or kind in ("", "Trainer", "Seq2SeqTrainer"):
        return None
    if raised.frames and raised.packages[0] not in ("transformers", "lightning", "pytorch_lightning"):
        return None
    owner = owner_of(kind)
    package = "" if owner in ("transformers", "lightning") else pip_name(owner)
    caller = pip_name(raised.packages[0]) if raised.frames else "transformers"
    return {"call": found["call"], "name": found["name"] or "", "package": package, "caller": caller}


def read_versioned(reading: Reading) -> Mapping[str, str] | None:
    """A call that does not fit the installed version of what it calls, and not what a trainer hands to a class."""
    raised = reading.last
    if raised is None or "'decoder_" in raised.message or read_override(reading) or read_unsaved(reading):
        return None
    return read_argument(reading)


def read_unsaved(reading: Reading) -> Mapping[str, str] | None:
    """An argument that loading should find in a checkpoint, where it was never written."""
    raised = reading.last
    found = CALL.search(raised.message) if raised and raised.type == "TypeError" else None
    if raised is None or not found or not found["lacks"] or not SAVED.search(raised.source):
        return None
    values = {
        "name": found["lacks"],
        "call": found["call"].replace(".__init__", ""),
        **(read_argument(reading) or {}),
    }
    sure = raised.packages[:1] in (("lightning",), ("pytorch_lightning",))
    return values if sure else {**values, "doubtful": "1"}


def read_left_out(reading: Reading) -> Mapping[str, str] | None:
    """An argument that the program itself does not give to a function of a package."""
    raised = reading.last
    found = CALL.search(raised.message) if raised and raised.type == "TypeError" else None
    if raised is None or not found or not found["lacks"] or in_studio(reading) or not raised.frames:
        return None
    own = raised.packages[0] == ""
    return (
        {"name": found["lacks"], **(read_argument(reading) or {})} if own and read_argument(reading) else None
    )

"""Failures of going on from a checkpoint: what it lacks, and what does not belong to it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from studio.machine.failures.error_text import Reading
from studio.machine.failures.failure import Failure, Remedy, said

LOADERS = ("load_state_dict", "load_checkpoint", "_load_checkpoint", "resume", "load_from_checkpoint")
TAKEN = re.compile(
    r"\b(?:\w*checkpoint|ckpt|saved_state|saved|\w*state_dict|\w*model_sd|\w*pretrained_dict)\[['\"]|"
    r"\bload_state_dict\(\w+\[['\"]|\b(?:torch\.load|load_file|safe_load|np\.load)\(.{0,120}?\)\[['\"]"
)
"""A line of code that takes a part out of a checkpoint."""
MEMORY = re.compile(r"\w*(?:buffer|exp_avg\w*|momentum\w*)|step|d_denom|betas?")
"""What an optimizer remembers of each weight, or of each group of them."""
REMEMBERED = re.compile(r"\b(?:state|group|param_group)\[['\"]\w+['\"]\]")
"""A line of an optimizer that takes out what it remembers."""
NAMED_NUMBER = re.compile(
    r"(?=[^\n]*(?:dirs?\b|folder|paths?\b|ckpt|checkpoint|basename|listdir|glob|file_?names?|fname))"
    r"[^\n]*\bint\([^\n]*(?:split|replace|strip|removeprefix|search|match)\("
)
"""A line of code that reads a number out of the name of a file or folder."""


def _read_contents(reading: Reading) -> Mapping[str, str] | None:
    """A part of a checkpoint that is not in it, or is of another kind, asked for where it is taken in."""
    raised = reading.last
    if raised is None or raised.type not in ("KeyError", "TypeError") or not raised.frames:
        return None
    key = raised.message.partition("\n")[0].strip(" '\"")
    if raised.type == "TypeError":
        asked = re.search(r"\[['\"](\w+)['\"]\]", raised.source)
        key = asked[1] if asked else key
    inside = raised.frames[-1].function in LOADERS or TAKEN.search(raised.source) is not None
    return {"name": key} if inside and 0 < len(key) < 80 and "." not in key else None


def _read_pickled(reading: Reading) -> Mapping[str, str] | None:
    """A file that holds a whole object, whose program code is not here."""
    raised = reading.last
    if raised is None or raised.type not in ("ModuleNotFoundError", "AttributeError"):
        return None
    found = re.search(r"(?:No module named|Can't get attribute) '(?P<module>\w[\w.]*)'", raised.message)
    unpickled = any(
        re.search(r"[\\/]torch[\\/]serialization\.py$", frame.path) for frame in raised.frames[-3:]
    )
    return {"module": found["module"]} if found and unpickled else None


def _read_state(reading: Reading) -> Mapping[str, str] | None:
    """Sizes that do not go together inside the optimizer: what it remembers belongs to other weights."""
    raised = reading.last
    if raised is None:
        return None
    memory = raised.type == "KeyError" and MEMORY.fullmatch(raised.message.partition("\n")[0].strip(" '\""))
    if memory and raised.frames:
        return {} if "optim" in raised.frames[-1].path else None
    if raised.type == "KeyError" and raised.frames and REMEMBERED.search(raised.source):
        return {} if re.search(r"optimi", raised.frames[-1].path) else None
    if raised.type != "RuntimeError" or "must match" not in raised.message:
        return None
    inside = raised.frames and re.search(r"[\\/]torch[\\/]optim[\\/]\w+\.py$", raised.frames[-1].path)
    return {} if inside else None


def _read_named(reading: Reading) -> Mapping[str, str] | None:
    """A file or folder whose name has no number where the code reads one, such as a checkpoint's step."""
    raised = reading.last
    if raised is None or raised.type != "ValueError" or not NAMED_NUMBER.search(raised.source):
        return None
    found = re.search(r"invalid literal for int\(\) with base 10: (?P<name>'[^'\n]{0,80}')", raised.message)
    return {"name": found["name"]} if found else None


FAILURES = (
    Failure(
        "number_of_name",
        None,
        (Remedy("names_with_numbers"), Remedy("name_checkpoint")),
        code="R71",
        reader=_read_named,
    ),
    Failure(
        "checkpoint_absent",
        said(
            r"No valid checkpoint found in output directory",
            r"Can't find a valid checkpoint at",
            r"Unable to find latest (?:file|checkpoint)",
        ),
        (Remedy("name_checkpoint"),),
        code="R18",
    ),
    Failure(
        "optimizer_groups",
        said(
            r"loaded state dict contains a parameter group that doesn't match the size of optimizer's group",
            r"loaded state dict has a different number of parameter groups",
            r"The state of _OptimStateKey\([\s\S]{0,6000}?\) is empty",
            r"Missing key in checkpoint state_dict: [^\n]*\boptim",
        ),
        (Remedy("same_trainable"),),
        code="R29",
        reader=_read_state,
    ),
    Failure(
        "checkpoint_incomplete",
        said(
            r"checkpoint contains only the model",
            r"Unable to load (?:optimizer|random states?|rng state)[^\n]{0,20} from checkpoint",
            r"(?:FileNotFoundError|No such file|does not exist|not found)[^\n]*"
            r"(?:trainer_state\.json|optimizer\.(?:pt|bin)|scheduler\.pt|rng_state(?:_\d+)?\.pth|"
            r"zero_pp_rank_\w+\.pt)",
            r"assert len\(self\.ckpt_list\) > 0[^\n]*",
        ),
        (Remedy("whole_checkpoint"), Remedy("weights_only_start")),
        code="R33",
    ),
    Failure(
        "scheduler_resumed",
        said(r"param 'initial_lr' is not specified in param_groups"),
        (Remedy("load_scheduler"),),
        code="R34",
    ),
    Failure(
        "checkpoint_other",
        said(
            r"CheckpointMismatchError",
            r"checkpoint[^\n]{0,200} seems to be from a different",
            r"used a (?:DP|TP|PP) world size of \d+ but the current",
            r"checkpoint[^\n]{0,60}(?:saved|made) with a different number of (?:processes|ranks|cards|GPUs)",
        ),
        (Remedy("same_settings"), Remedy("weights_only_start")),
        code="R36",
    ),
    Failure(
        "pickled_object",
        None,
        (Remedy("save_weights_only"), Remedy("own_folder")),
        code="R37",
        reader=_read_pickled,
    ),
    Failure(
        "checkpoint_contents",
        None,
        (Remedy("look_in_checkpoint"), Remedy("weights_only_start"), Remedy("convert_checkpoint")),
        code="R35",
        reader=_read_contents,
    ),
)

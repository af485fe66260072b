"""Failures of packages that are there in part only, or in parts of two versions."""

from __future__ import annotations

import re
from collections.abc import Mapping

from studio.machine.failures.error_text import WANTED, Reading
from studio.machine.failures.failure import Failure, Remedy
from studio.machine.failures.package_names import KNOWN, LIBRARIES, NAMESPACES, OWN_MODULES, pip_name

Values = Mapping[str, str] | None
MODULE_ATTRIBUTE = re.compile(r"module '?(?P<module>[\w.]+)'? has no attribute '?(?P<name>\w+)'?")
IMPORT = re.compile(
    r"cannot import name '?(?P<name>\w+)'? from (?:partially initialized module )?'?(?P<module>[\w.]+)"
)
INSIDE = re.compile(r"No module named '(?P<module>\w+\.[\w.]+)'")
"""Python names a part with its package only where it found the package: `'a.b'` is missing in an `a` that is there.
Python 2 wrote it without quotes, and for whatever was missing."""
INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/](?P<root>\w+)[\\/]")
LASTING = re.compile(
    r"pipeline|Auto(?:Model|Tokenizer|Config|ModelFor(?:CausalLM|SequenceClassification|Seq2SeqLM))|Trainer|"
    r"TrainingArguments|PreTrained(?:Model|Tokenizer)|DataCollator(?:WithPadding|ForLanguageModeling)|"
    r"(?:Bert|GPT2|T5)(?:Model|Config|Tokenizer|LMHeadModel|ForConditionalGeneration|ForSequenceClassification)"
)
"""Names of transformers that no version since 4.0 lacks."""
ALWAYS_THERE = {
    "bitsandbytes": "optim nn functional",
    "torch": "nn cuda Tensor tensor float32 float16 device load save utils version no_grad",
    "datasets": "load_dataset Dataset",
    "peft": "LoraConfig get_peft_model PeftModel",
    "accelerate": "Accelerator",
    "triton": "jit language runtime",
    "gradio": "Blocks Interface",
    "numpy": "array ndarray",
    "pandas": "DataFrame",
    "deepspeed": "initialize init_distributed",
    "yaml": "load safe_load",
    "wandb": "init login",
}
"""What every version of a package has: where it lacks that, not the package was loaded."""
COMPILED = re.compile(r"(?:^|(?<!utils)\.)(?:_\w+|lib|C)$")
"""What packages call the part that is compiled, beside the part in Python that asks for its names."""


def read_hollow(reading: Reading) -> Values:
    """A package of which Python finds a folder alone, without the code in it."""
    raised = reading.last
    if raised is not None and raised.type == "AttributeError":
        found = MODULE_ATTRIBUTE.search(raised.message)
        there = f"{ALWAYS_THERE.get(found['module'], '')} __version__".split() if found else []
        hollow = (
            found is not None
            and found["name"] in there
            and found["module"] in LIBRARIES | ALWAYS_THERE.keys()
        )
        hollow = hollow and "partially initialized" not in raised.message
    else:
        found = IMPORT.search(raised.message) if raised and raised.type == "ImportError" else None
        hollow = found is not None and "(unknown location)" in raised.message
    if raised is None or found is None or not hollow:
        return None
    root = found["module"].partition(".")[0]
    if root in OWN_MODULES or root in NAMESPACES:
        return None
    return {"name": found["name"], "module": found["module"], "package": pip_name(root), "root": root}


def read_incomplete(reading: Reading) -> Values:
    """A part of a package that the package itself does not find."""
    raised = reading.last
    part = INSIDE.search(raised.message) if raised and raised.type == "ModuleNotFoundError" else None
    if raised is None or part is None or "is not a package" in raised.message:
        return None
    root = part["module"].partition(".")[0]
    # A starter, which pip puts beside Python for the package of then.
    starter = raised.frames and re.search(
        rf"[\\/](?:bin|Scripts)[\\/](?:{root}(?:-\w+|\.exe)?(?:\W|$)|[\w.-]+\.exe[\\/]__main__\.py)",
        raised.frames[-1].path,
    )
    inside = raised.packages[:1] == (root,) or starter
    return {"module": part["module"], "package": pip_name(root)} if inside else None


def read_mixed(reading: Reading) -> Values:
    """A name of a package's own part, which the package itself asks for: the two are of different versions."""
    raised = reading.last
    if raised is None or raised.type not in ("AttributeError", "ImportError"):
        return None
    found = MODULE_ATTRIBUTE.search(raised.message) or IMPORT.search(raised.message)
    module = found["module"] if found else ""
    root, _, part = module.partition(".")
    if (
        not found
        or not part
        or (root not in LIBRARIES and root not in KNOWN)
        or "circular import" in raised.message
    ):
        return None
    # Only what starts the package is its own: what it is asked for later comes from outside.
    asks = raised.packages[:1] == (root,) and "<module>" in (frame.function for frame in raised.frames[-1:])
    bare = not raised.frames and COMPILED.search(part) is not None and MODULE_ATTRIBUTE.search(raised.message)
    return {"name": found["name"], "module": module, "package": pip_name(root)} if asks or bare else None


def read_lazy(reading: Reading) -> Values:
    """A name that every version of transformers has, and that it loads only when it is asked for."""
    raised = reading.last
    found = IMPORT.search(raised.message) if raised and raised.type == "ImportError" else None
    if raised is None or found is None or found["module"] != "transformers" or "circular" in raised.message:
        return None
    there = LASTING.fullmatch(found["name"]) is not None and INSTALLED.search(raised.message)
    return {"name": found["name"]} if there else None


def read_module_lacks(reading: Reading) -> Values:
    """A name that a module lacks of which nobody knows whether it is a package or a file of the program itself."""
    raised = reading.last
    found = MODULE_ATTRIBUTE.search(raised.message) if raised and raised.type == "AttributeError" else None
    root = found["module"].partition(".")[0] if found else ""
    if (
        raised is None
        or found is None
        or root in LIBRARIES
        or raised.packages[:1] not in ((), ("",), ("python",))
    ):
        return None
    return {"name": found["name"], "module": found["module"], "package": pip_name(root), "root": root}


def read_there(reading: Reading) -> Values:
    """A package that a message wants installed, where the exception went through that package's own code."""
    raised = reading.last
    if raised is None or raised.type not in ("ImportError", "ModuleNotFoundError", "RuntimeError"):
        return None
    found = WANTED.search(raised.message)
    named = found["name"].replace("-", "_").lower() if found else ""
    # What installs itself by a newer version of itself says which one it wants.
    if not named or named not in raised.packages or re.search(r"[<>=]=|[Uu]pgrade|[Uu]pdate", raised.message):
        return None
    others = [name for name in raised.packages if name in LIBRARIES and name != named]
    caller = pip_name(others[0]) if others else ""
    return {"package": pip_name(named), "caller": caller} if caller else None


IMPORT_FAILED = re.compile(
    r"Failed to import (?P<module>\w[\w.]*) because of the following error[^\n]*:\s*\n(?P<says>(?!Failed to)[^\n]+)"
)


def _read_import_failed(reading: Reading) -> Values:
    """A package that tells of the error for which it could not be loaded, where nothing knows that error."""
    found = [match for match in IMPORT_FAILED.finditer(reading.words)]
    if not found or reading.last is None or not reading.last.wraps:
        return None
    says = found[-1]["says"].strip()
    lacking = MODULE_ATTRIBUTE.search(says)
    # A package that lacks what it is asked for is the one that does not fit, whoever loaded it.
    module = lacking["module"] if lacking else found[-1]["module"]
    return {"package": pip_name(module.partition(".")[0]), "says": says, "line": says}


FAILURES = (
    Failure(
        "package_incomplete",
        None,
        (Remedy("install_again", needs=("package",)), Remedy("python_312")),
        code="V31",
        reader=read_incomplete,
    ),
    Failure(
        "package_there",
        None,
        (Remedy("upgrade_both", needs=("package", "caller")), Remedy("install_again", needs=("package",))),
        code="V86",
        reader=read_there,
    ),
    Failure(
        "import_failed",
        None,
        (Remedy("upgrade_package", needs=("package",)), Remedy("above_it")),
        code="V68",
        reader=_read_import_failed,
        last_resort=True,
    ),
    Failure(
        "package_hollow",
        None,
        (Remedy("hollow_place", needs=("root",)), Remedy("install_again", needs=("package",))),
        code="V61",
        reader=read_hollow,
    ),
    Failure(
        "lazy_name", None, (Remedy("lazy_reason"), Remedy("restart_python")), code="V66", reader=read_lazy
    ),
    Failure(
        "package_mixed",
        None,
        (Remedy("restart_python"), Remedy("install_again", needs=("package",))),
        code="V64",
        reader=read_mixed,
    ),
    Failure(
        "module_lacks",
        None,
        (Remedy("module_place", needs=("root",)), Remedy("upgrade_package", needs=("package",))),
        code="V65",
        reader=read_module_lacks,
        last_resort=True,
    ),
)

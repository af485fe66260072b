"""Failures of which nothing else is known than what their message says: what lacks, what is refused, what to do.

They count only where no other entry knows the exception that ended it, and they quote the sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from studio.core.i18n import text
from studio.machine.failures.code_places import MODEL_CODE
from studio.machine.failures.conditions import read_condition
from studio.machine.failures.error_text import FEW_WORDS, Reading
from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.fields import thing_of
from studio.machine.failures.key_errors import read_bare_key, read_package_key
from studio.machine.failures.messages import OF_VALUES, first_line, read_message, sentence_with
from studio.machine.failures.package_frames import LONGEST, breaking_package, read_inside
from studio.machine.failures.package_names import KNOWN, LIBRARIES, pip_name
from studio.machine.failures.statements import read_statement
from studio.machine.failures.traceback_calls import in_studio
from studio.machine.failures.wording import ADVICE, FILE, LACKS, REFUSES, REPORT, UNKNOWN_NAME, VALUE

Values = Mapping[str, str] | None
NONE = re.compile(r"\bNoneType\b|\bnot None\b|^None is not\b")
NONE_TYPES = frozenset(("TypeError", "AttributeError"))
SETTING = (
    r"\b(?:\w*args|cfg|conf|\w*config|opts?|options|hparams|settings|\w*params|flags|FLAGS)\.([A-Za-z_]\w*)"
)
USES = (("not subscriptable", r"\["), ("not callable", r"\("), ("no len()", r"\)"))
"""How a line uses what is None, by the words of the message."""
ITERATED = re.compile(
    r"(?:\b(?:tuple|list|set|sorted|enumerate|iter|dict|sum|max|min|any|all)\(| in |\*)"
    r"((?:self\.)?[A-Za-z_][\w.]*(?:\[[\w'\"]+\])?)(?=\)|:|\]|\s*$)"
)
"""What a line goes through, by its name; what a call gave back has none."""
SLIP = re.compile(
    r"argument of type '\w*(?:Error|Exception)' is not iterable|exceptions must derive from BaseException"
)
"""What nobody means to write: a mistake in the program code that looks at an error."""
OBJECT = re.compile(r"<module '[\w.]+' from |<bound method |<built-in (?:function|method) ")
"""A piece of Python where a message means to show a name or a number: the code handed over the wrong thing."""
CALLERS = frozenset(
    "datasets trl transformers accelerate torch peft gradio unsloth unsloth_zoo vllm pandas".split()
)
"""Packages that call functions which a program hands to them."""
LOADER = re.compile(r"[\\/]utils[\\/]data[\\/]")
ARROW = re.compile(r"^-+> ?\d* *(?=assert )")
SHOWN = re.compile(r"^assert [^\n]{1,200}, \(?f['\"](?P<words>[^\n]{0,300})")
FILLED = re.compile(r"\{[^}\n]*\}")
UNPACKED = re.compile(r"(?:too many|not enough|need more than \d+) values? to unpack")


def _reader(id: str, pattern: re.Pattern[str], *, of_tensors: bool = True) -> Callable[[Reading], Values]:
    def read(reading: Reading) -> Values:
        kind, message = read_message(reading)
        if not message or (kind == "torch" and not of_tensors):
            return None
        says = sentence_with(message, pattern)
        if not says:
            return None
        return {"says": says, "about": first_line(id, says, message)}

    return read


def _read_report(reading: Reading) -> Values:
    """An exception whose own message calls it a fault of the package that raised it."""
    _, message = read_message(reading)
    raised = reading.last
    if raised is None or not REPORT.search(message):
        return None
    known = [name for name in raised.packages if name in LIBRARIES or name in KNOWN]
    # An assertion of compiled code names its source file, and PyTorch only handed the call on.
    places = [name for name in re.split(r"[\\/\"]+", message) if name in LIBRARIES and name != "torch"]
    known = places[:1] + known
    found = re.match(r"(?P<name>Unsloth|vLLM|DeepSpeed|Axolotl|TRL|PEFT)\b", message, re.IGNORECASE)
    package = known[0] if known else found["name"].lower() if found else ""
    package = "torch" if "bug to PyTorch" in message and not places[:1] else package
    says = sentence_with(message, re.compile(r"\S"))
    return {"says": says, "package": pip_name(package)} if package and package != MODEL_CODE else None


def _read_slip(reading: Reading) -> Values:
    """A mistake in a package's own program code."""
    raised = reading.last
    shown = raised is not None and raised.on_purpose and OBJECT.search(raised.message)
    if raised is None or not raised.frames or not (SLIP.search(raised.message) or shown):
        return None
    package = next((name for name in raised.packages if name in LIBRARIES or name in KNOWN), "")
    return {"says": raised.message.partition("\n")[0], "package": pip_name(package)} if package else None


def _read_setting_none(reading: Reading) -> Values:
    """A setting without a value, by the line of code that uses it."""
    raised = reading.last
    if raised is None or in_studio(reading) or not NONE.search(raised.message):
        return None
    lacks = re.search(r"has no attribute '(?P<name>\w+)'", raised.message)
    owner = rf"\.{lacks['name']}\b" if lacks else r"(?!\.\w)"
    names = re.findall(SETTING + owner, raised.source) or re.findall(
        r"(?:environ\.get|getenv)\(['\"](\w+)['\"]", raised.source
    )
    named = ", ".join(dict.fromkeys(names))
    return {"name": named, "says": raised.source} if named and raised.type in NONE_TYPES else None


def _read_none(reading: Reading) -> Values:
    """A value that was never made or found."""
    raised = reading.last
    # A type with None beside it is a way to write types, not a value.
    typed = raised is not None and "for |: " in raised.message
    if raised is None or in_studio(reading) or not NONE.search(raised.message) or raised.wraps or typed:
        return None
    return {"says": raised.source or raised.message} if raised.type in NONE_TYPES else None


def _read_named_none(reading: Reading) -> Values:
    """Which value was never made or found, where the line of code tells it apart from the others of that line."""
    found, raised = _read_none(reading), reading.last
    if found is None or raised is None or not raised.source or breaking_package(reading)[0]:
        return None
    lacks = re.search(r"has no attribute '(?P<name>\w+)'", raised.message)
    how = (
        rf"\.{lacks['name']}\b"
        if lacks
        else next((sign for said, sign in USES if said in raised.message), "")
    )
    names = re.findall(rf"((?:self\.)?[A-Za-z_][\w.]*(?:\[[\w'\"]+\])?){how}", raised.source) if how else []
    names += ITERATED.findall(raised.source) if "not iterable" in raised.message else []
    names = [name for name in dict.fromkeys(names) if "." in name or len(name) > 2]
    return {"name": names[0], "says": raised.source} if len(names) == 1 else None


def _read_none_thing(reading: Reading) -> Values:
    """A value that was never made or found, and what it would have been, by what was asked of it."""
    found, raised = _read_none(reading), reading.last
    lacks = re.search(r"has no attribute '(?P<name>\w+)'", raised.message) if raised is not None else None
    thing = thing_of(lacks["name"]) if lacks else ""
    if found is None or lacks is None or not thing:
        return None
    return {**found, "name": lacks["name"], "thing": text(f"failure.thing.{thing}")}


def _read_none_inside(reading: Reading) -> Values:
    """A value that was never made or found, met by a package's own code."""
    found, (package, caller) = _read_none(reading), breaking_package(reading)
    return {**found, "package": package, "caller": caller} if found and package else None


def _read_unpacked(reading: Reading) -> Values:
    """A line that takes apart what has more or fewer parts."""
    raised = reading.last
    if raised is None or raised.type != "ValueError" or in_studio(reading):
        return None
    return {"says": raised.source or raised.message} if UNPACKED.match(raised.message) else None


def _read_asserted(reading: Reading) -> Values:
    """A condition without words that the program wants of its values."""
    raised = reading.last
    if raised is None or raised.type != "AssertionError" or in_studio(reading) or raised.wraps:
        return None
    asserts = ARROW.sub("", raised.source)
    if raised.packages[:1] == ("torch",) or not (asserts or raised.message).startswith("assert "):
        return None
    # Words that only repeat the values say less than the condition.
    shown = SHOWN.search(raised.source)
    blanks = " ".join(FILLED.findall(shown["words"])) if shown else ""
    own = set(re.findall(r"[A-Za-z]{2,}", FILLED.sub("", shown["words"]))) if shown else set()
    said = " ".join(raised.message.split())
    worded = bool(own - set(re.findall(r"\w+", blanks))) if shown else len(said.split()) >= FEW_WORDS
    if worded and not said.startswith("assert "):
        stated = read_statement(said)
        about = stated.spoken() if stated else text("failure.asserted.worded", says=said[:LONGEST])
        return {"says": said[:LONGEST], "about": about}
    wanted = read_condition(asserts or said)
    about = wanted.spoken() if wanted else text("failure.asserted.none")
    return {"says": (asserts or said).removeprefix("assert ")[:LONGEST], "about": about}


def _read_callback(reading: Reading) -> Values:
    """A function of the program itself that a package called, such as one for rows, rewards or metrics."""
    raised = reading.last
    if (
        raised is None
        or raised.type not in OF_VALUES | {"ValueError", "ZeroDivisionError", "AxisError"}
        or in_studio(reading)
    ):
        return None
    if len(raised.frames) < 2 or raised.packages[0] != "" or not raised.frames[-1].function.isidentifier():
        return None
    outer = next((frame for frame in reversed(raised.frames) if frame.package not in ("", "python")), None)
    caller = outer.package if outer is not None else ""
    # PyTorch calls a program's data sets and collators.
    if outer is not None and caller == "torch" and LOADER.search(outer.path) is None:
        return None
    if caller not in CALLERS:
        return None
    return {"call": raised.frames[-1].function, "package": pip_name(caller), "says": raised.source}


FAILURES = (
    Failure(
        "not_loaded",
        said(
            r"(?:[Uu]nable to|[Cc]ould not|[Ff]ailed to) (?:load|import|find) (?P<name>[\w.\[\]/-]+ [^\n]{1,100})\n"
            r"[\s\S]{0,4000}?'NoneType' object is not callable",
        ),
        (Remedy("known_name"), Remedy("newer_program")),
        code="D151",
        strength=0.9,
    ),
    Failure(
        "once_only",
        said(
            r"`?AcceleratorState`? object has no attribute",
            r"(?:[Cc]an|[Mm]ay|[Ss]hould|[Mm]ust) only (?:be )?(?:call|called|use|used|set|"
            r"initiali[sz]ed?|register(?:ed)?|"
            r"applied|apply|enabled?) [^\n]{0,60}?\bonce\b",
            r"(?:already (?:been )?(?:initiali[sz]ed|called|started|patched|wrapped|set(?: up)?)\b)(?![^\n]{0,40}port)",
        ),
        (Remedy("once_a_process"), Remedy("no_watching")),
        code="D163",
        strength=0.85,
    ),
    Failure(
        "setting_none",
        None,
        (Remedy("give_setting", needs=("name",)), Remedy("settings_read")),
        code="V22",
        reader=_read_setting_none,
        last_resort=True,
    ),
    Failure(
        "own_callback",
        None,
        (Remedy("try_callback", needs=("call",)), Remedy("print_row")),
        code="V26",
        reader=_read_callback,
        last_resort=True,
    ),
    Failure(
        "package_key",
        None,
        (Remedy("known_name"), Remedy("upgrade_package", needs=("package",))),
        code="V27",
        reader=read_package_key,
        last_resort=True,
    ),
    Failure(
        "bare_key",
        None,
        (Remedy("right_columns"), Remedy("keep_columns")),
        code="V54",
        reader=read_bare_key,
        last_resort=True,
        doubt=Doubt("key_of_version", "line_above"),
    ),
    Failure("key_of_version", None, (Remedy("upgrade_all"), Remedy("newer_program")), code="V55"),
    Failure(
        "package_slip",
        None,
        (Remedy("upgrade_package", needs=("package",)), Remedy("report_fault", needs=("package",))),
        code="V35",
        reader=_read_slip,
        last_resort=True,
    ),
    Failure(
        "package_fault",
        None,
        (Remedy("upgrade_package", needs=("package",)), Remedy("report_fault", needs=("package",))),
        code="V21",
        reader=_read_report,
        last_resort=True,
    ),
    Failure(
        "told_lacking",
        None,
        (Remedy("give_named"),),
        code="D130",
        reader=_reader("told_lacking", LACKS),
        last_resort=True,
    ),
    Failure(
        "told_file",
        None,
        (Remedy("check_path"), Remedy("which_files")),
        code="D135",
        reader=_reader("told_file", FILE),
        last_resort=True,
    ),
    Failure(
        "told_unknown",
        None,
        (Remedy("known_name"), Remedy("newer_program")),
        code="D131",
        reader=_reader("told_unknown", UNKNOWN_NAME, of_tensors=False),
        last_resort=True,
    ),
    Failure(
        "told_refused",
        None,
        (Remedy("leave_refused"), Remedy("newer_program")),
        code="D132",
        reader=_reader("told_refused", REFUSES),
        last_resort=True,
    ),
    Failure(
        "told_value",
        None,
        (Remedy("correct_value"),),
        code="D133",
        reader=_reader("told_value", VALUE, of_tensors=False),
        last_resort=True,
    ),
    Failure(
        "told_advice",
        None,
        (Remedy("follow_message"),),
        code="D134",
        reader=_reader("told_advice", ADVICE, of_tensors=False),
        last_resort=True,
    ),
    Failure(
        "none_named",
        None,
        (Remedy("find_named", needs=("name",)), Remedy("whole_model_files")),
        code="V52",
        reader=_read_named_none,
        last_resort=True,
    ),
    Failure(
        "none_inside",
        None,
        (Remedy("find_none"), Remedy("print_handed")),
        code="V47",
        reader=_read_none_inside,
        last_resort=True,
        doubt=Doubt("inside_package", "example_first"),
    ),
    Failure(
        "inside_package",
        None,
        (
            Remedy("upgrade_pair", needs=("package", "caller")),
            Remedy("upgrade_package", needs=("package",)),
            Remedy("older_package", needs=("package",)),
        ),
        code="V44",
        reader=read_inside,
        last_resort=True,
        doubt=Doubt("value_handed", "own_frame"),
    ),
    Failure("value_handed", None, (Remedy("print_handed"),), code="V45"),
    Failure(
        "none_thing",
        None,
        (Remedy("find_none"), Remedy("upgrade_all")),
        code="V90",
        reader=_read_none_thing,
        last_resort=True,
        strength=0.5,
    ),
    Failure(
        "none_value",
        None,
        (Remedy("find_none"),),
        code="V23",
        reader=_read_none,
        last_resort=True,
        strength=0.5,
    ),
    Failure(
        "unpack_count",
        None,
        (Remedy("print_parts"), Remedy("upgrade_all")),
        code="V24",
        reader=_read_unpacked,
        last_resort=True,
    ),
    Failure(
        "asserted",
        None,
        (Remedy("print_condition"), Remedy("newer_program")),
        code="D137",
        reader=_read_asserted,
        last_resort=True,
    ),
)

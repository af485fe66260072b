"""How sure an answer is: what its words leave open is said, and what they settle is not doubted."""

import json
from html import escape

import pytest

from studio.core.i18n import load_catalogue, text
from studio.machine.failures import CATALOGUE, diagnose, weigh_text
from studio.machine.failures.certainty import TELLS
from studio.machine.failures.diagnosis import clean, leave_out_harmless
from studio.machine.failures.explanation import REASONS, explain_words
from studio.ui.tabs.doctor.report import cause_card
from tests.each_time import every
from tests.machine.recorded_texts import failures as recorded

PLACE = 'Traceback (most recent call last):\n  File "/home/u/{path}", line 3, in run\n    do(x)\n'
TOLD = "behind_except"
OWN, LIBRARY = PLACE.format(path="mine.py"), PLACE.format(path="site-packages/trl/trainer.py")


@pytest.mark.parametrize(
    ("words", "id", "doubt"),
    [
        # What broke, not why.
        ("ResolutionImpossible: no way out of these\n", "pip_conflict", "what"),
        (
            "RuntimeError: The size of tensor a (8) must match the size of tensor b (9)\n",
            "tensor_shapes",
            "what",
        ),
        # The type's name alone, against what the message says again or the type says in several words.
        (OWN + "safetensors_rust.SafetensorError: the ink ran dry\n", "weights_damaged", "kind"),
        (OWN + "PermissionError: the doorman says no\n", "permission", "kind"),
        (OWN + "huggingface_hub.errors.GatedRepoError: knock first\n", "gated", ""),
        # The system, of a file that is named, and of one that is not.
        (OWN + "PermissionError: [Errno 13] Zugriff verweigert\n", "permission", "file"),
        (OWN + "PermissionError: [Errno 13] Permission denied: '/runs/a'\n", "permission", ""),
        # What Python says of any value, raised by nobody who gives it a meaning.
        (OWN + "TypeError: list indices must be integers or slices, not str\n", "row_form", "plain"),
        # The program went on after the line, or did not.
        ("error: Disk quota exceeded\nstep 5 of 9\nstep 6 of 9\n", "quota", "went_on"),
        ("step 5 of 9\nstep 6 of 9\nerror: Disk quota exceeded\n", "quota", ""),
    ],
)
def test_what_the_words_leave_open_is_a_doubt(words, id, doubt):
    verdict = weigh_text(words)
    assert (verdict.first.entry.id, verdict.second, verdict.doubt) == (id, None, doubt)


def test_a_key_that_the_program_itself_misses_is_less_certain_than_one_that_a_library_asks_for():
    for place, doubt in ((OWN, "plain"), (LIBRARY, "")):
        verdict = weigh_text(place + "KeyError: 'prompt'\n")
        assert (verdict.first.entry.id, verdict.doubt) == ("column_missing", doubt)


@pytest.mark.parametrize(
    ("words", "first", "second", "tell"),
    [
        (
            "ERROR: Could not install packages due to an OSError: [WinError 5] Access is denied: 'C:\\\\p\\\\x.dll'\n",
            "pip_in_use",
            "permission",
            "who_holds",
        ),
        ("OSError: [Errno 28] No space left on device\n", "disk_full", "shared_memory", "df"),
        # Windows says the same of a file that is open elsewhere and of one that is not one's own; of a folder, too.
        (
            OWN + "PermissionError: [WinError 5] Zugriff verweigert: 'D:\\\\runs\\\\a'\n",
            "windows_denied",
            "permission",
            "who_holds_5",
        ),
        (
            OWN + "PermissionError: [Errno 13] Permission denied: 'D:\\\\runs\\\\a'\n",
            "folder_opened",
            "permission",
            "dir_path",
        ),
        # What breaks in a package's own code: its version, or what it was given.
        (LIBRARY + "TypeError: unhashable type: 'list'\n", "inside_package", "value_handed", "own_frame"),
        (
            LIBRARY + "TypeError: 'NoneType' object is not iterable\n",
            "none_inside",
            "inside_package",
            "example_first",
        ),
        # What a program asks for shows no more whether it caught the error or got it back.
        (
            "AttributeError: 'RetryError' object has no attribute 'choices'\n",
            "error_as_result",
            "caught_error",
            TOLD,
        ),
        (
            OWN + "TypeError: 'KeyError' object is not subscriptable\n",
            "error_as_result",
            "caught_error",
            TOLD,
        ),
        # Columns of three libraries have this name.
        ("TypeError: 'Column' object is not callable\n", "column_object", "query_column", "module_of_column"),
        (
            OWN + "AttributeError: 'Column' object has no attribute 'x'\n",
            "column_object",
            "query_column",
            "module_of_column",
        ),
    ],
)
def test_the_same_words_of_two_causes_name_both(words, first, second, tell):
    verdict = weigh_text(words)
    assert (verdict.first.entry.id, verdict.second.entry.id, verdict.tell) == (first, second, tell)
    assert verdict.doubt == ""


@pytest.mark.parametrize("name", ["retry_after", "url", "http_status", "user_message", "lineno", "param"])
def test_what_an_error_has_in_other_versions_is_no_result(name):
    verdict = weigh_text(OWN + f"AttributeError: 'RateLimitError' object has no attribute '{name}'\n")
    assert (verdict.first.entry.id, verdict.second.entry.id) == ("own_attribute", "api_attribute")


@pytest.mark.parametrize(
    ("line", "id"),
    [
        ('rows = load_dataset("x")["train"]["text"].x', "column_object"),
        ("from pyspark.sql import functions", "query_column"),
        ("import sqlalchemy", "query_column"),
    ],
)
def test_whose_column_it_is_the_text_tells(line, id):
    places = OWN.replace("do(x)", line)
    verdict = weigh_text(f"{places}AttributeError: 'Column' object has no attribute 'x'\n")
    assert (verdict.first.entry.id, verdict.second, verdict.doubt) == (id, None, "")


@pytest.mark.parametrize(
    "words",
    [
        "ValueError: node not found in graph\n",
        "slurmstepd: error: node not found\n",
        "error: node not found\n",
        "ModuleNotFoundError: tensorboard not found\n",
        "modbus: Error 802 while reading register 5\n",
    ],
)
def test_words_of_many_programs_are_no_missing_program_and_no_driver(words):
    assert diagnose(words).id not in ("command_missing", "fabric_manager")


@pytest.mark.parametrize(
    "words", ["/bin/sh: node not found", "make not found in PATH", "bash: line 3: tensorboard not found"]
)
def test_behind_a_shell_the_same_words_name_a_program(words):
    assert diagnose(words + "\n").id == "command_missing"


@pytest.mark.parametrize(
    ("name", "id", "words"),
    [
        ("qwen2.5:7b", "name_of_ollama", "OWNER/NAME"),
        ("unsloth/Qwen3-8B-GGUF:Q4_K_M", "name_with_version", 'revision="Q4_K_M"'),
        ("D:models", "model_path", "folder"),
    ],
)
def test_a_name_alone_with_a_colon_is_ollama_s_or_a_drive(name, id, words):
    answer = explain_words(
        f"HFValidationError: Repo id must use alphanumeric chars: '{name}'.\n", load_catalogue("en")
    )
    assert answer["id"] == id and words in answer["fixes"][0]


def test_a_full_disk_whose_file_is_named_is_certain():
    verdict = weigh_text("OSError: [Errno 28] No space left on device: '/data/runs/a/model.safetensors'\n")
    assert (verdict.first.entry.id, verdict.second, verdict.doubt) == ("disk_full", None, "")


def test_what_any_package_may_be_is_no_rival_of_words_of_their_own():
    assert weigh_text("ModuleNotFoundError: No module named 'torch'\n").second is None


@pytest.mark.parametrize("tag", ["en", "zh-CN"])
def test_a_doubt_is_told_in_words_with_the_line_to_search_for(tag):
    catalogue = load_catalogue(tag)
    answer = explain_words("error: Disk quota exceeded\nstep 5 of 9\nstep 6 of 9\n", catalogue)
    assert answer["id"] == "quota" and answer["line"] == "error: Disk quota exceeded"
    assert answer["doubt"] and answer["doubt"] != "explain.doubt.went_on"
    assert explain_words("error: Disk quota exceeded\n", catalogue)["doubt"] == ""
    card = cause_card(answer, lambda id, **values: catalogue.say(text(id, **values)))
    assert escape(answer["doubt"]) in card
    json.dumps(answer)
    told = {entry.doubt.tell for entry in CATALOGUE if entry.doubt}
    for name in {*TELLS.values(), *told, "try_first"}:
        assert catalogue.has(f"failure.tell.{name}"), name


def test_a_cause_whose_explanation_names_several_reasons_is_likely_not_certain():
    catalogue = load_catalogue("en")
    several = explain_words("RuntimeError: No CUDA GPUs are available\n", catalogue)
    assert several["id"] == "gpu_hidden" and several["doubt"].startswith("Not certain")
    one = explain_words("OSError: [Errno 122] Disk quota exceeded: '/data/runs/a'\n", catalogue)
    assert (one["id"], one["doubt"]) == ("quota", "")


def test_both_languages_name_several_reasons_of_the_same_causes():
    both = [load_catalogue(tag).words for tag in ("en", "zh-CN")]
    ids = [f"failure.{entry.id}.why" for entry in CATALOGUE if not entry.harmless]
    assert sum(bool(REASONS.search(both[0].get(id, ""))) for id in ids) > 100
    for id in ids:
        said = {bool(REASONS.search(words.get(id, ""))) for words in both}
        assert len(said) == 1, id


def test_the_unknown_says_which_package_raised_it():
    catalogue = load_catalogue("en")
    assert "package trl" in explain_words(LIBRARY + "ValueError: the moon is full\n", catalogue)["what"]
    garbled = PLACE.format(path="site-packages/peft_init_.py")
    assert "package" not in explain_words(garbled + "ValueError: the moon is full\n", catalogue)["what"]
    own = explain_words(OWN + "ValueError: the moon is full\n", catalogue)
    assert own["what"] == "The studio does not know this error yet."
    assert own["line"] == "ValueError: the moon is full"


ENGLISH = load_catalogue("en").words
SOME = recorded()[::7]
STATES = "".join(f"step {state}/90 loss 1.{state}\n" for state in range(9))
STILL_TOLD = {
    ("flash_attention_build", "download_cut"),
    ("mixed_columns", "bad_json"),
    ("adapter_targets", "permission"),
}
"""Texts of which the rest states a cause of its own."""
UNKNOWN_END = PLACE.format(path="site-packages/oddlib/core.py") + "ValueError: the moon is full\n"
WARNINGS = (
    "UserWarning: CUDA_HOME is not set, some features are off\n",
    "[    3.1] nouveau 0000:01:00.0: DRM: VRAM: 8192 MiB\n",
    "A matching Triton is not available, some optimizations will not be enabled.\n",
    "WARNING:bitsandbytes.cextension:Could not find the bitsandbytes CUDA binary at PosixPath('/x.so')\n",
    "[W socket.cpp:697] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99).\n",
    "WARNING: Running pip as the 'root' user can result in broken permissions\n",
)


def certain_cause(words: str) -> str:
    """Return the id of the one cause that is told without a doubt; "" for none."""
    verdict = weigh_text(words)
    if verdict is None or verdict.second or verdict.doubt:
        return ""
    id = verdict.first.entry.id
    return "" if REASONS.search(ENGLISH[f"failure.{id}.why"]) else id


@pytest.mark.parametrize(("id", "text"), every(4, SOME))
def test_without_the_line_that_names_it_no_other_cause_is_certain(id, text):
    words, _ = leave_out_harmless(clean(text))
    found = weigh_text(words).first
    start, end = words.rfind("\n", 0, found.position) + 1, words.find("\n", found.end)
    rest = words[:start] + (words[end + 1 :] if end >= 0 else "")
    cause = certain_cause(rest)
    assert cause in ("", id) or (id, cause) in STILL_TOLD


@pytest.mark.parametrize("text", every(4, [text for _, text in SOME]))
def test_what_went_by_is_not_certain_where_the_end_is_unknown(text):
    assert certain_cause(f"{text}\n\n{UNKNOWN_END}") == ""
    assert certain_cause(f"{text}\n{STATES}ERROR: the moon is full, giving up\n") == ""


@pytest.mark.parametrize(("id", "text"), every(4, SOME))
def test_a_warning_before_the_error_is_never_certain(id, text):
    for warning in WARNINGS:
        assert certain_cause(warning + text) in ("", id), warning


@pytest.mark.parametrize(
    "name", ["GatedRepoError", "OfflineModeIsEnabled", "SafetensorError", "PermissionError"]
)
def test_an_error_that_is_only_named_was_not_raised(name):
    text = f"ImportError: cannot import name '{name}' from 'hub.errors' (/w/site-packages/hub/errors.py)\n"
    assert diagnose(text).id == "package_mismatch"

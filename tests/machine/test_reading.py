"""A pasted text in its parts: exceptions, the packages that they went through, and what each line weighs."""

import time

import pytest

from studio.machine.failures import weigh_text
from studio.machine.failures.code_places import package_of
from studio.machine.failures.error_text import Reading
from studio.machine.failures.signature import Signature, alternatives, needed_words
from tests.each_time import every

CHAIN = """Traceback (most recent call last):
  File "/venv/lib/python3.12/site-packages/transformers/utils/hub.py", line 424, in cached_files
    hf_hub_download(
  File "/venv/lib/python3.12/site-packages/huggingface_hub/utils/_validators.py", line 154, in validate_repo_id
    raise HFValidationError(
huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name': './out'.

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/data/me/train.py", line 9, in <module>
    load("CUDA out of memory")
OSError: We couldn't connect to 'https://hub.example' to load this file
and nothing is kept here.
"""
NOTEBOOK = """TypeError                                 Traceback (most recent call last)
Cell In[18], line 3
----> 3 trainer = SFTTrainer(
File ~/venv/lib/python3.11/site-packages/transformers/utils/deprecation.py:165, in deprecate_kwarg.<locals>.f(*args)
--> 165 return func(*args, **kwargs)
TypeError: SFTTrainer.__init__() got an unexpected keyword argument 'dataset_text_field'
"""


def test_a_chain_of_exceptions_is_read_with_its_places():
    reading = Reading(CHAIN)
    first, last = reading.raised
    assert (first.type, first.linked, first.packages) == (
        "HFValidationError",
        False,
        ("huggingface_hub", "transformers"),
    )
    assert (last.type, last.linked, last.packages) == ("OSError", True, ("",))
    assert last.message.endswith("and nothing is kept here.")
    assert reading.last is last


def test_a_notebook_s_traceback_is_read():
    (raised,) = Reading(NOTEBOOK).raised
    assert (raised.type, raised.packages) == ("TypeError", ("transformers",))


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("/venv/lib/python3.12/site-packages/trl/trainer/sft_trainer.py", "trl"),
        (r"C:\venv\Lib\site-packages\peft\config.py", "peft"),
        ("/usr/local/lib/python3.10/dist-packages/torch/_ops.py", "torch"),
        ("/root/.cache/huggingface/modules/transformers_modules/a/b/modeling_b.py", "transformers_modules"),
        ("/usr/lib/python3.10/json/decoder.py", "python"),
        ("transformers/modeling_utils.py", "transformers"),
        ("/data/transformers/train.py", ""),
        ("/data/me/train.py", ""),
    ],
)
def test_a_place_belongs_to_a_package(path, package):
    assert package_of(path) == package


def test_code_and_paths_weigh_nothing_and_the_last_exception_most():
    reading = Reading(CHAIN)
    weights = {
        line: reading.weigh(CHAIN.index(line), CHAIN.index(line) + len(line))
        for line in CHAIN.splitlines()
        if line
    }
    assert weights['    load("CUDA out of memory")'] == 0
    assert weights["OSError: We couldn't connect to 'https://hub.example' to load this file"] == 1
    assert (
        0.9
        < weights[
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name': './out'."
        ]
        < 1
    )
    assert weigh_text(CHAIN).first.entry.id == "model_path"


@pytest.mark.parametrize(
    "words",
    [
        '  File "/data/CUDA out of memory/x.py", line 3, in f\nValueError: the moon is full\n',
        "    raise RuntimeError('Expected all tensors to be on the same device')\nValueError: the moon is full\n",
    ],
)
def test_a_path_and_a_line_of_code_are_no_sign(words):
    assert weigh_text(words) is None


def test_what_only_passes_on_gives_way_to_what_it_passes_on():
    words = (
        "RuntimeError: CUDA out of memory\n"
        "subprocess.CalledProcessError: Command '['python']' returned non-zero exit status 1.\n"
    )
    assert Reading(words).last.type == "RuntimeError"
    assert weigh_text(words).first.entry.id == "gpu_memory"


def test_two_equal_causes_in_different_places_are_both_named():
    verdict = weigh_text("error: Disk quota exceeded\nsome line\nerror: Read-only file system\n")
    assert {verdict.first.entry.id, verdict.second.entry.id} == {"quota", "read_only"}
    assert verdict.tell == "first_line"
    sure = weigh_text("error: Disk quota exceeded\nOSError: [Errno 30] Read-only file system: '/x'\n")
    assert (sure.first.entry.id, sure.second) == ("read_only", None)


def test_words_with_two_causes_name_both_and_a_command():
    verdict = weigh_text(
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
    )
    assert (verdict.first.entry.id, verdict.second.entry.id, verdict.tell) == (
        "cublas_start",
        "token_range",
        "blocking",
    )


def test_needed_words_are_in_every_match():
    assert alternatives(r"a|b[|]c|(d|e)\|f") == ["a", r"b[|]c", r"(d|e)\|f"]
    assert needed_words(r"(?:uvicorn|ollama)[^\n]{0,30}use") == ("uvicorn", "ollama")
    assert needed_words(r"x(?:longer)?y") == ("x",)
    assert Signature("red|gr(?:ee|a)n").search("GRAN") is not None


@pytest.mark.parametrize(
    "piece",
    every(
        3,
        [
            "a ",
            "/",
            "'",
            '"',
            "(",
            "[",
            "1",
            ".",
            "\\",
            "Error: ",
            "a.",
            "A",
            "-> ",
            "[WinError 5]",
            'File "',
            "requires ",
            "error ",
            "{'loss': ",
        ],
    ),
)
def test_no_text_takes_long(piece):
    started = time.process_time()
    weigh_text(piece * (100_000 // len(piece)))
    weigh_text(("ImportError: " + piece * 200 + "\n") * 100)
    assert time.process_time() - started < 3


VLLM = """(W pid=185) ERROR 11-27 22:39:46 [multiproc.py:822]   File "/site-packages/vllm/ops.py", line 18, in shrink
(W pid=185) ERROR 11-27 22:39:46 [multiproc.py:822]     assert mapping.size(0) == M
(W pid=185) ERROR 11-27 22:39:46 [multiproc.py:822] AssertionError
(Engine pid=18) ERROR 11-27 22:39:46 [core.py:842] Traceback (most recent call last):
"""


def test_what_was_asserted_is_the_message_behind_any_program_s_line_head():
    last = Reading(VLLM).last
    assert (last.type, last.message, last.packages) == (
        "AssertionError",
        "assert mapping.size(0) == M",
        ("vllm",),
    )


def test_a_place_whose_beginning_was_not_copied_is_a_place():
    last = Reading(
        '/trl/trainer/grpo_trainer.py", line 26, in __init__\n    super().__init__(\nTypeError: no\n'
    ).last
    assert [(frame.package, frame.function) for frame in last.frames] == [("trl", "__init__")]


def test_what_another_process_could_not_hand_over_is_not_the_cause():
    words = """OSError: [WinError 1455] 页面文件太小 Error loading "C:\\torch\\lib\\cublas64_12.dll"
Traceback (most recent call last):
  File "C:\\Python311\\Lib\\multiprocessing\\reduction.py", line 131, in detach
PermissionError: [WinError 5] 拒绝访问。
"""
    assert Reading(words).last.message.startswith("[WinError 1455]")


@pytest.mark.parametrize(
    ("words", "first", "second"),
    [
        ("ModuleNotFoundError: No module named 'my_losses'", "package_missing", "own_module"),
        ("ModuleNotFoundError: No module named 'nltk'", "package_missing", None),
        ("ModuleNotFoundError: No module named 'nltk.new'", "package_mismatch", None),
        ("ModuleNotFoundError: No module named 'google.protobuf'", "package_missing", None),
        ("ImportError: Please run pip install my_losses", "package_missing", None),
    ],
)
def test_a_module_that_no_known_package_has_may_be_a_file_of_the_program(words, first, second):
    verdict = weigh_text(words)
    assert verdict.first.entry.id == first
    assert (verdict.second.entry.id if verdict.second else None) == second


def test_a_text_of_a_few_lines_is_what_a_program_said_and_one_that_a_log_went_past_is_not():
    words = "Unsupported config option for services.trainer: 'cards'\n"
    assert weigh_text(words).first.entry.id == "told_refused"
    # What a log ends in is read where it has one of the usual forms, and what went by is not.
    assert weigh_text("step 1 of 9\n" * 5 + words).first.entry.id == "told_state"
    assert weigh_text(words + "step 1 of 9\n" * 5) is None
    assert weigh_text("\n \n") is None

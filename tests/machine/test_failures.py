"""Known errors are told apart by their real words, unknown ones are never guessed, and every remedy has words."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from studio.core.errors import StudioError
from studio.core.i18n import load_catalogue, text
from studio.core.knob import knobs_of
from studio.core.recipe import Recipe, change_recipe
from studio.machine.failures import CATALOGUE, diagnose
from studio.machine.failures.diagnosis import last_line
from tests.machine.facts import make_machine, make_recipe

ROOT = Path(__file__).resolve().parents[2]

# As the libraries word them, most of them seen in released versions.
SAID = {
    "gpu_memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "paging_file": "OSError: [WinError 1455] Die Auslagerungsdatei ist zu klein",
    "shared_memory": "RuntimeError: unable to open shared memory object </torch_1> in read-write mode",
    "ram_killed": "worker ended with exit code 137",
    "ram": "RuntimeError: [enforce fail at alloc_cpu.cpp:115] . DefaultCPUAllocator: can't allocate memory",
    "assembler_old": "ptxas failed with error code 4294967295\nptxas: line 9; fatal: Unsupported .version 8.4",
    "bf16_old_gpu": "ptxas /tmp/a.ptx, line 5; error: Feature '.bf16' requires .target sm_80 or higher\n"
    "RuntimeError: `ptxas` failed with error code 4294967295",
    "python_library": "tcc: error: undefined symbol '__imp_PyTuple_Size'",
    "python_headers": "__triton_launcher.c:2: error: include file 'Python.h' not found",
    "libtriton": "ImportError: DLL load failed while importing libtriton: Eine DLL-Initialisierungsroutine",
    "cuda_utils": "ImportError: DLL load failed while importing cuda_utils",
    "no_compiler": "RuntimeError: Failed to find C compiler. Please specify via CC environment variable",
    "triton_shadowed": "ModuleNotFoundError: No module named 'triton.language'; 'triton' is not a package",
    "triton_absent": "ModuleNotFoundError: No module named 'triton'",
    "kernel_resources": "OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 101376",
    "kernel_compile": "RuntimeError: `ptxas` failed with error code 4294967295",
    "bitsandbytes_library": "RuntimeError: Attempted to use bitsandbytes native library functionality",
    "bitsandbytes_absent": "ImportError: Using `bitsandbytes` 4-bit quantization requires bitsandbytes",
    "torch_cpu_build": "AssertionError: Torch not compiled with CUDA enabled",
    "driver_old": "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
    "driver_mismatch": "Failed to initialize NVML: Driver/library version mismatch",
    "gpu_unsupported": "CUDA error: no kernel image is available for execution on the device",
    "gpu_hidden": "RuntimeError: No CUDA GPUs are available",
    "gpu_lost": "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
    "launch_timeout": "CUDA error: the launch timed out and was terminated",
    "device_assert": "AcceleratorError: CUDA error: device-side assert triggered",
    "illegal_access": "AcceleratorError: CUDA error: an illegal memory access was encountered",
    "cuda_library": "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory",
    "disk_full": "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 704 vs 598",
    "read_only": "OSError: [Errno 30] Read-only file system: '/data/runs'",
    "file_locked": "PermissionError: [WinError 32] Der Prozess kann nicht auf die Datei zugreifen",
    "security_policy": "OSError: [WinError 4551] Eine Anwendungssteuerungsrichtlinie hat diese Datei blockiert",
    "permission": "PermissionError: [Errno 13] Permission denied: '/data/runs/r1'",
    "no_folder": "NotADirectoryError: [Errno 20] Not a directory: '/data/readme.md/x'",
    "path_too_long": "OSError: [Errno 36] File name too long: 'aaaa'",
    "too_many_files": "OSError: [Errno 24] Too many open files",
    "weights_damaged": "SafetensorError: Error while deserializing header: MetadataIncompleteBuffer",
    "token_range": "IndexError: index out of range in self",
    "sampling": "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
    "number_format": "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16",
    "gated": "GatedRepoError: 403 Client Error. Cannot access gated repo for url https://hub.test/meta/x",
    "not_on_hub": "RepositoryNotFoundError: 401 Client Error. Repository Not Found for url: https://hub.test/x",
    "no_token": "HfHubHTTPError: 401 Client Error: Unauthorized for url",
    "certificate": "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",
    "offline": "OfflineModeIsEnabled: Cannot reach https://hub.test: offline mode is enabled.",
    "download_cut": "RemoteProtocolError: peer closed connection without sending complete message body",
    "hub_unreachable": "ConnectError: [Errno -3] Temporary failure in name resolution",
    "architecture_unknown": "ValueError: model type `new` but Transformers does not recognize this architecture",
    "remote_code": "ValueError: The repository contains custom code which must be executed",
    "adapter_targets": "ValueError: Target modules {'query'} not found in the base model.",
    "shape_mismatch": "RuntimeError: Error(s) in loading:\n\tsize mismatch for layers.0.q_proj.weight: copying",
    "weights_shape": "RuntimeError: You set `ignore_mismatched_sizes` to `False`, thus raising an error.",
    "tokenizer_missing": "ValueError: Couldn't instantiate the backend tokenizer from one of: ",
    "no_template": "ValueError: Cannot use chat template functions because tokenizer.chat_template is not set",
    "template_refused": "jinja2.exceptions.TemplateError: Conversation roles must alternate user/assistant/",
    "not_utf8": "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xb2 in position 3: invalid start byte",
    "bad_json": "JSONDecodeError: Expecting ',' delimiter: line 3 column 9 (char 60)",
    "no_examples": "ValueError: num_samples should be a positive integer value, but got num_samples=0",
    "mixed_columns": "ArrowInvalid: Column() changed from object to string in row 0",
    "visual_runtime": "OSError: [WinError 126] The specified module could not be found. Error loading c10.dll",
    "processor_old": "the process ended by SIGILL",
    "native_crash": "Fatal Python error: Segmentation fault",
    "port_taken": "OSError: Cannot find empty port in range: 7860-7959",
    "two_openmp": "OMP: Error #15: Initializing libiomp5md.dll, but found libomp already initialized.",
    "console_encoding": "UnicodeEncodeError: 'charmap' codec can't encode character",
    "multi_gpu_windows": "RuntimeError: Distributed package doesn't have NCCL built in",
    "package_missing": "ModuleNotFoundError: No module named 'trl'",
}


BLANKS = dict.fromkeys(
    (
        "about",
        "thing",
        "line",
        "module",
        "layer",
        "name",
        "new",
        "call",
        "caller",
        "version",
        "package",
        "need",
        "kind",
        "command",
        "first",
        "has",
        "header",
        "library",
        "path",
        "says",
        "second",
        "wants",
        "size",
    ),
    "x",
)
"""Every value that words of the catalogue have blanks for."""


@pytest.mark.parametrize("id", SAID)
def test_known_words(id):
    assert diagnose(SAID[id]).id == id


@pytest.mark.parametrize(
    "id, error",
    [
        ("ram", MemoryError()),
        # Under a limit of a file's size, as safetensors 0.8 says it; a quota has the number 122.
        (
            "disk_full",
            Exception("SafetensorError: Error while serializing: I/O error: File too large (os error 27)"),
        ),
        ("disk_full", OSError(errno.ENOSPC, "No space left on device", "/x/model.safetensors")),
        ("permission", PermissionError(errno.EACCES, "Permission denied", "/x")),
        ("token_range", IndexError("index out of range in self")),
        ("package_missing", ModuleNotFoundError("No module named 'peft'")),
        ("bad_json", __import__("json").JSONDecodeError("Expecting value", "x", 0)),
    ],
)
def test_exceptions(id, error):
    assert diagnose(error).id == id


def test_the_cause_of_a_wrapping_exception_counts_and_the_outer_one_wins():
    try:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as inner:
            raise RuntimeError("saving went wrong") from inner
    except RuntimeError as outer:
        assert diagnose(outer).id == "disk_full"
    try:
        try:
            raise ModuleNotFoundError("No module named 'triton'")
        except ModuleNotFoundError:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")  # noqa: B904
    except RuntimeError as outer:
        assert diagnose(outer).id == "illegal_access"


def test_an_exception_can_name_its_entry():
    class NonFinite(Exception):
        failure_id = "non_finite"

    recipe = make_recipe({"model.precision": "fp16", "optim.learning_rate": 2e-4})
    diagnosis = diagnose(NonFinite("step 9"), None, recipe)
    assert diagnosis.id == "non_finite"
    changes = [dict(fix.change) for fix in diagnosis.fixes]
    assert changes == [
        {"optim.learning_rate": recipe.optim.learning_rate / 4},
        {"model.precision": "fp32"},
        {},
    ]


def test_a_refusal_speaks_for_itself():
    what, why, fix = text("model.adapter", name="x"), text("model.adapter.why"), text("model.adapter.fix")
    diagnosis = diagnose(StudioError(what, why, fix))
    assert (diagnosis.id, diagnosis.what, diagnosis.why, diagnosis.fixes[0].title) == (
        "refused",
        what,
        why,
        fix,
    )


@pytest.mark.parametrize(
    "error", [ValueError("the moon is full\nmore"), "Traceback:\n  File x\nValueError: the moon is full\n\n"]
)
def test_the_unknown_is_not_guessed(error):
    diagnosis = diagnose(error)
    assert diagnosis.id == "unknown"
    assert load_catalogue("en").say(diagnosis.why) == "ValueError: the moon is full"


def test_last_line_of_nothing():
    assert last_line("") == "?"
    assert last_line("one\ntwo\n  ^^^^\n") == "two"


def test_memory_fixes_keep_the_examples_of_a_step():
    recipe = make_recipe({"optim.batch_size": 8, "data.max_length": 300})
    changed = [
        change_recipe(recipe, dict(fix.change)) for fix in diagnose(SAID["gpu_memory"], None, recipe).fixes
    ]
    assert (changed[0].optim.micro_batch, changed[0].optim.batch_size) == (4, 8)
    assert changed[1].run.activation_checkpointing == "on"
    assert changed[2].data.max_length == 256
    assert changed[3].model.quantization == "nf4"
    smallest = make_recipe(
        {"optim.micro_batch": 1, "run.activation_checkpointing": "on", "data.max_length": 256}
    )
    titles = [fix.title.id for fix in diagnose(SAID["gpu_memory"], None, smallest).fixes]
    assert titles == ["failure.fix.four_bits", "failure.fix.smaller_model"]
    machine = make_machine(bitsandbytes_error="broken")
    titles = [fix.title.id for fix in diagnose(SAID["gpu_memory"], machine, smallest).fixes]
    assert titles == ["failure.fix.smaller_model"]


def test_every_entry_has_words_and_changes_that_a_recipe_takes():
    knobs = {knob.path: knob for knob in knobs_of(Recipe)}
    assert len({failure.id for failure in CATALOGUE}) == len(CATALOGUE) >= 60
    for language in ("en", "zh-CN"):
        catalogue = load_catalogue(language)
        for failure in CATALOGUE:
            diagnosis = failure.diagnose(BLANKS, make_recipe())
            for words in (diagnosis.what, diagnosis.why, *(fix.title for fix in diagnosis.fixes)):
                assert catalogue.has(words.id), words.id
                assert "{" not in catalogue.say(words)
            assert diagnosis.fixes, failure.id
            for path, value in {
                path: value for fix in diagnosis.fixes for path, value in fix.change.items()
            }.items():
                assert not knobs[path].choices or value in knobs[path].choices


def test_the_words_of_ordinary_life_are_not_failures():
    for line in (
        "step 10 loss 1.234",
        "Saved checkpoint-100",
        "GPU memory 3.2 GB",
        "loading weights from model.safetensors",
    ):
        assert diagnose(line).id == "unknown"


def test_it_works_when_nothing_is_installed():
    code = "from studio.machine.failures import diagnose; print(diagnose('CUDA out of memory').id)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "gpu_memory", done.stderr


def test_a_number_that_was_not_shown_leaves_no_gap_in_the_words():
    found = diagnose("ValueError: invalid literal for int() with base 10:")
    assert found.id == "text_for_number" and "{" not in load_catalogue("en").say(found.what)

"""Recorded error texts: one cause each, also in long logs; harmless lines never blamed, the unknown never guessed."""

import random
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studio.core.i18n import load_catalogue
from studio.machine.failures import CATALOGUE, code_of, diagnose, weigh_text
from studio.machine.failures.diagnosis import clean, leave_out_harmless
from studio.machine.failures.signature import Signature, plain_part
from tests.each_time import every
from tests.machine.recorded_texts import FOLDER, failures, read_texts

TEXTS = failures()
IDS = [f"{id}-{number}" for number, (id, _) in enumerate(TEXTS)]
UNSAID = {"torch_fails"}
"""Entries for what only a look at the machine can say."""
NOISE = (
    "Loading checkpoint shards: 100%|██████████| 2/2 [00:04<00:00,  2.11s/it]\n"
    "{'loss': 1.6071, 'grad_norm': 7.4473676681518555, 'learning_rate': 6.29e-09, 'epoch': 0.0}\n"
    "LINK : fatal error LNK1181: cannot open input file 'aio.lib'\n"
    "D:\\AI\\triton\\windows_utils.py:315: UserWarning: Failed to find Python libs.\n"
    " 18%|█▊        | 11/60 [00:32<02:25,  2.98s/it]\n"
    "FutureWarning: `torch_dtype` is deprecated! Use `dtype` instead!\n"
    "Map (num_proc=2): 100%|██████████| 51760/51760 [00:20<00:00, 2511.12 examples/s]\n"
)
SHAPES = {
    "inside a log": lambda text: NOISE * 20 + text + NOISE * 20,
    "Windows lines": lambda text: (NOISE + text + NOISE).replace("\n", "\r\n"),
    "colours": lambda text: "\n".join(f"\x1b[31;1m{line}\x1b[0m" for line in text.split("\n")),
    "after a bar": lambda text: "\r 18%|#| 11/60\r 20%|#| 12/60\n" + text,
    "time stamps": lambda text: "\n".join(
        f"2026-11-20 10:12:00,123 - ERROR - {line}" for line in text.split("\n")
    ),
}


@pytest.mark.parametrize(("id", "text"), every(3, TEXTS), ids=IDS)
def test_each_text_has_one_cause(id, text):
    assert diagnose(text).id == id


@pytest.mark.computing
@pytest.mark.parametrize(("id", "text"), TEXTS, ids=IDS)
def test_each_text_has_one_cause_wherever_it_stands(id, text):
    for shape, dress in SHAPES.items():
        if shape == "time stamps" and re.search(r"^Killed$", text, re.MULTILINE):
            continue  # a shell writes it alone, with nothing before it
        assert diagnose(dress(text)).id == id, shape


def test_there_are_texts_enough_and_some_for_every_signature():
    assert len(TEXTS) >= 120
    texted = {id for id, _ in TEXTS} | UNSAID
    told = {entry.id for entry in CATALOGUE if (entry.signature or entry.reader) and not entry.harmless}
    assert told == texted
    translated = [
        text for _, text in TEXTS if re.search(r"[\u4e00-\u9fff]|ä|ö|ü|Das |Der |Zugriff|Eine ", text)
    ]
    assert len(translated) >= 25


def test_the_readme_counts_texts_and_machines_as_they_are():
    texts = sum(len(read_texts(path.stem)) for path in FOLDER.glob("*.txt"))
    machines = len(list((FOLDER.parent / "machines").glob("*.json")))
    english, chinese = (
        (FOLDER.parents[2] / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")
    )
    assert f"{machines} recorded or made-up machines and {texts} error texts" in english
    assert f"{machines} 台记录或构造的机器和 {texts} 段错误信息" in chinese


@pytest.mark.parametrize(("code", "text"), read_texts("harmless"))
def test_harmless_lines_are_never_a_cause(code, text):
    code = code.split()[0]
    diagnosis = diagnose(text)
    assert (diagnosis.id, code_of(diagnosis)) == ("harmless", code)
    assert diagnose(text + "\ntorch.OutOfMemoryError: CUDA out of memory.\n" + text).id == "gpu_memory"
    unknown = diagnose(text + "\nValueError: the moon is full\n" + text)
    assert (unknown.id, load_catalogue("en").say(unknown.why)) == ("unknown", "ValueError: the moon is full")


@pytest.mark.parametrize(("line", "text"), read_texts("unknown"))
def test_the_unknown_keeps_its_last_useful_line(line, text):
    diagnosis = diagnose(text)
    assert (diagnosis.id, load_catalogue("en").say(diagnosis.why)) == ("unknown", line)


@pytest.mark.parametrize("number", ["4294967295", "-1", "255"])
def test_the_assembler_s_exit_code_is_never_a_cause(number):
    words = f"RuntimeError: `ptxas` failed with error code {number}: \n"
    assert diagnose(words).id == "kernel_compile"
    assert (
        diagnose(words + "ptxas fatal   : Unsupported .version 8.6; current version is '8.5'").id
        == "assembler_old"
    )
    bf16 = "ptxas a.ptx, line 3; error   : Feature '.bf16' requires .target sm_80 or higher\n"
    assert diagnose(bf16 + words).id == "bf16_old_gpu"


@pytest.mark.parametrize(("id", "text"), every(4, TEXTS[::7]))
def test_a_text_cut_at_its_ends_is_known_as_long_as_the_line_that_names_it_is_there(id, text):
    text, _ = leave_out_harmless(clean(text))  # positions are those of what is left
    found = weigh_text(text).first
    start, end = text.rfind("\n", 0, found.position) + 1, text.find("\n", found.end)
    if found.entry.signature and found.entry.signature.search(text):
        # What was read out of an exception may stand in any line of its message.
        cuts = [text[start : end if end >= 0 else None], text[start:]]
        assert id in [diagnose(cut).id for cut in cuts]


@pytest.mark.computing
@settings(max_examples=150, deadline=None)
@given(st.integers(min_value=0, max_value=2**32), st.integers(min_value=1, max_value=60))
def test_ordinary_log_lines_are_never_a_cause(seed, lines):
    draw = random.Random(seed)
    words = (
        "loading",
        "model",
        "step",
        "loss",
        "tokens/s",
        "GPU",
        "memory",
        "saved",
        "checkpoint",
        "cache",
        "epoch",
    )
    words += (
        "triton",
        "ptxas",
        "CUDA",
        "driver",
        "bitsandbytes",
        "kernel",
        "dataset",
        "torch",
        "version",
        "Windows",
    )
    log = []
    for _ in range(lines):
        chosen = [draw.choice(words) for _ in range(draw.randint(2, 9))]
        chosen.insert(draw.randint(0, len(chosen)), f"{draw.uniform(0, 9999):.{draw.randint(0, 5)}f}")
        log.append(draw.choice(("", "INFO ", "[rank0]: ", "  File ")) + " ".join(chosen))
    assert diagnose("\n".join(log)).id in ("unknown", "harmless")


def test_nothing_and_blank_text_are_unknown():
    for words in ("", "\n\n \t\n", "----\n====\n"):
        assert diagnose(words).id == "unknown"


@pytest.mark.computing
def test_the_plain_part_is_in_every_match():
    for entry in CATALOGUE:
        for pattern in entry.signature.patterns if entry.signature else ():
            plain = plain_part(pattern).lower()
            for _, text in TEXTS:
                found = re.search(pattern, text, re.IGNORECASE | re.MULTILINE)
                assert found is None or plain in text.lower(), pattern
    assert plain_part(r"WinError (?:32|33)\b") == "WinError "
    assert plain_part(r"python3\d+t?\.lib") == "python3"
    assert plain_part(r"a|bcd") == ""
    assert plain_part(r"\u9875 full") == " full"
    assert Signature("x+y", r"a{2}b").search("AAB") is not None


@pytest.mark.computing
def test_a_megabyte_takes_a_moment():
    started = time.process_time()
    assert diagnose(NOISE * 2000 + TEXTS[0][1]).id == TEXTS[0][0]
    assert time.process_time() - started < 3

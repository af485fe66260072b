"""`launch.py explain`: a file or a pasted text, in any encoding and both languages, with nothing installed."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from studio.cli import explain
from studio.cli.explain import HEAD_BYTES, TAIL_BYTES, find_encoding
from studio.cli.main import main
from studio.installer import python_choice
from tests.each_time import some

ROOT = Path(__file__).resolve().parents[2]
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
CHINESE = 'OSError: [WinError 126] 找不到指定的模块。 Error loading "D:\\torch\\lib\\c10.dll"\n'
GERMAN = 'LINK : fatal error LNK1104: Datei "python312.lib" kann nicht geöffnet werden.\n'
LIMIT_S = 1.0


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout without .venv that holds only what `explain` may need: no desk, no engine, no window."""
    folder = tmp_path_factory.mktemp("explain") / "a checkout"
    (folder / "studio" / "cli").mkdir(parents=True)
    names = (
        "launch.py",
        "studio/__init__.py",
        "studio/cli/__init__.py",
        "studio/cli/explain.py",
        "studio/cli/arguments.py",
        "studio/cli/console.py",
    )
    for name in names:
        shutil.copy(ROOT / name, folder / name)
    for name in ("studio/core", "studio/hub", "studio/installer", "studio/machine", "assets/locales"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def ask(checkout):
    """Run `launch.py explain WORDS...` and return the finished process; `text` is what is piped in."""

    def run(*words, text: bytes | None = None, **more: str):
        keep = {name: os.environ[name] for name in ("PATH", "HOME", "SYSTEMROOT") if name in os.environ}
        return subprocess.run(
            [sys.executable, str(checkout / "launch.py"), "explain", *map(str, words)],
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            env={**keep, "LANG": "C.UTF-8", **more},
            timeout=60,
        )

    return run


@pytest.fixture
def tell(monkeypatch, capsys):
    """What `explain WORDS...` prints of a piped text, in this process: (stdout, stderr)."""

    def run(text: bytes, *words: object, code: int = 0) -> tuple[str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        monkeypatch.setenv("FINETUNE_STUDIO_LANGUAGE", "en")
        assert explain.main(["explain", *map(str, words)]) == code
        return capsys.readouterr()

    return run


@pytest.fixture
def tell_json(tell):
    """The object that `explain --json` prints of a piped text, in this process."""
    return lambda text: json.loads(tell(text, "--json")[0])


def answer(process) -> dict:
    assert process.returncode == 0, process.stderr.decode()
    return json.loads(process.stdout)


@pytest.mark.computing
def test_a_piped_text_and_a_file_in_both_languages(ask, tmp_path, checkout):
    piped = answer(ask("--json", text=OUT_OF_MEMORY.encode()))
    assert piped.keys() == {"id", "code", "what", "why", "where", "fixes", "line", "other", "tell", "doubt"}
    assert (piped["id"], piped["code"], piped["line"]) == ("gpu_memory", "M1", OUT_OF_MEMORY.strip())
    log = tmp_path / "a log.txt"
    log.write_text(GERMAN, encoding="utf-8")
    english = ask(log).stdout.decode()
    assert "Triton's compiler" in english and "[S1 python_library]" in english and "geöffnet" in english
    chinese = ask(log, LANG="zh_CN.UTF-8").stdout.decode()
    assert "编译器" in chinese and "Triton's compiler" not in chinese
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "gbk"])
def test_encodings_of_chinese(tell_json, encoding):
    found = tell_json((CHINESE * 3).encode(encoding))
    assert found["id"] == "visual_runtime" and "找不到指定的模块" in found["line"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16", "cp1252"])
def test_encodings_of_german(tell_json, encoding):
    found = tell_json(GERMAN.encode(encoding))
    assert found["id"] == "python_library" and "geöffnet" in found["line"]


def test_the_encoding_of_a_cut_text():
    data = CHINESE.encode("utf-8")
    assert find_encoding(data[: data.index("模".encode()) + 1]) == "utf-8"
    data = CHINESE.encode("gbk")
    assert find_encoding(data[: data.index("模".encode("gbk")) + 1]) == "gbk"


def test_harmless_and_unknown_texts_are_answers(tell, tell_json):
    harmless = tell_json(b"test.c\nLINK : fatal error LNK1181: cannot open input file 'aio.lib'\n")
    assert (harmless["id"], harmless["code"]) == ("harmless", "S7")
    unknown = tell_json(b"Traceback\nValueError: the moon is full\n")
    assert (unknown["id"], unknown["code"], unknown["line"]) == (
        "unknown",
        "",
        "ValueError: the moon is full",
    )
    assert len(unknown["fixes"]) == 2 and "Search" in unknown["fixes"][0] and "doctor" in unknown["fixes"][1]
    for words in (
        "[E] calibration went wrong: exited with code 3",
        "Fehler beim Laden",
        "错误：无法读取",
        "panic: out of tea",
    ):
        told = tell_json(f"start\n{words}\nbye\n".encode())
        assert (told["id"], told["line"], told["what"]) == (
            "unknown",
            words,
            "The studio does not know this error yet.",
        )
    calm = tell_json(b"step 60 of 60: loss 0.2\nsaved\n")
    assert calm["id"] == "unknown" and calm["what"] == "No error is seen in this text."


def test_two_causes_are_told_with_the_command_that_tells(tell, tell_json):
    words = b"RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`\n"
    found = tell_json(words)
    assert (found["id"], found["other"]["id"]) == ("cublas_start", "token_range")
    assert "CUDA_LAUNCH_BLOCKING=1" in found["tell"]
    told = tell(words)[0]
    assert told.startswith("Not sure") and "[C16 cublas_start, D41 token_range]" in told
    assert all(sentence in told for sentence in (found["what"], found["other"]["what"], found["tell"]))


def test_a_cause_that_is_not_certain_says_so_first_and_why(tell, tell_json):
    words = b"OSError: the disk\nResolutionImpossible: no way out\n"
    found = tell_json(words)
    assert (found["id"], found["other"]) == ("pip_conflict", None) and "not why" in found["doubt"]
    told = tell(words)[0].splitlines()
    assert told[0].startswith("Not sure") and found["doubt"] in told[0] and told[1] == found["what"]
    assert "Search" in found["fixes"][-1]


def test_a_person_with_a_program_of_their_own_is_served(tell, tell_json):
    assert any("gradient_accumulation_steps" in fix for fix in tell_json(OUT_OF_MEMORY.encode())["fixes"])
    words = b"TypeError: SFTTrainer.__init__() got an unexpected keyword argument 'tokenizer'\n"
    fixes = tell_json(words)["fixes"]
    assert "processing_class" in fixes[0] and "pip install -U trl" in fixes[1]


@pytest.mark.parametrize("as_json", [True, False])
def test_secrets_are_masked_in_all_that_is_printed(tell, tell_json, as_json):
    secrets = {
        "hf_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789": "401 Client Error: Unauthorized for url https://x?token={}",
        "s3cretword": "ProxyError: Cannot connect to proxy http://jane:{}@proxy.corp:8080",
        "sk-proj-abcdefgh12345678": "ValueError: the moon has the key {}",
        "AKIAABCDEFGHIJKLMNOP": "ValueError: the moon has the key {}",
        "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY": "ValueError: aws_secret_access_key = {}",
        "abcdefgh.12345": "RuntimeError: Authorization: Bearer {}",
    }
    for secret, words in secrets.items():
        told = tell(words.format(secret).encode(), *(["--json"] if as_json else []))
        assert secret not in "".join(told)
    kept = tell_json(
        b"ValueError: Fast download using 'hf_transfer' is enabled (HF_HUB_ENABLE_HF_TRANSFER=1) but "
        b"'hf_transfer' package is not available"
    )
    assert kept["id"] == "hf_transfer" and "'hf_transfer' package" in kept["line"]


def test_a_reader_who_leaves_is_no_error(checkout, tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("ValueError: the moon is full\n", encoding="utf-8")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        command = [sys.executable, str(checkout / "launch.py"), "explain", str(log)]
        done = subprocess.run(command, stdout=gone, stderr=subprocess.PIPE, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("place", ["start", "end"])
@pytest.mark.parametrize("piped", some([True, False], False))
@pytest.mark.parametrize("encoding", some(["utf-8", "utf-16"], "utf-8"))
def test_of_a_huge_log_its_ends_are_read(ask, tell, tmp_path, place, piped, encoding):
    line = f"step 12 loss 1.2 {'é' * 30}\n"
    filling = line * ((HEAD_BYTES + TAIL_BYTES) * 20 // len(line))
    words = OUT_OF_MEMORY + filling if place == "start" else filling + OUT_OF_MEMORY
    log = tmp_path / "train.log"
    log.write_bytes(words.encode(encoding))
    if piped:
        done = ask("--json", text=log.read_bytes())
        found, said = answer(done), done.stderr.decode()
    else:
        told, said = tell(b"", "--json", log)
        found = json.loads(told)
    assert found["id"] == "gpu_memory"
    assert "64 KB" in said


@pytest.mark.parametrize(
    "case",
    some(
        ["absent", "folder", "device", "empty", "blank", "binary", "no text", "two files"], "absent", "binary"
    ),
)
def test_bad_input_is_refused_in_three_sentences(ask, tell, tmp_path, case):
    blank, binary = tmp_path / "blank", tmp_path / "model.bin"
    blank.write_text("\n \n", encoding="utf-8")
    binary.write_bytes(bytes(range(256)) * 50)
    words = {
        "absent": [tmp_path / "no"],
        "folder": [tmp_path],
        "device": ["/dev/zero"],
        "empty": [os.devnull],
    }
    words |= {"blank": [blank], "binary": [binary], "no text": [], "two files": ["a", "b"]}
    done = ask(*words[case])
    assert (done.returncode, done.stdout, len(done.stderr.decode().splitlines())) == (2, b"", 3)
    as_json, _ = tell(b"", "--json", *words[case], code=2)
    assert json.loads(as_json)["error"].keys() == {"what", "why", "fix"}


def test_at_a_terminal_it_says_how_to_end(checkout):
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(checkout / "launch.py"), "explain"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
    )
    os.close(theirs)
    os.write(ours, b"CUDA out of memory\n\x04")
    out, error = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 0 and b"Ctrl-D" in error and b"M1 gpu_memory" in out


def test_it_takes_less_than_a_second(ask):
    ask(text=OUT_OF_MEMORY.encode())  # the first run writes the compiled files
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ask(text=(GERMAN * 3000 + OUT_OF_MEMORY).encode())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < LIMIT_S


def test_the_command_line_gives_the_same_answer(ask, tmp_path, capsys):
    log = tmp_path / "log.txt"
    log.write_text(OUT_OF_MEMORY, encoding="utf-8")
    assert main(["explain", "--json", str(log), "--workspace", str(tmp_path / "w")]) == 0
    assert json.loads(capsys.readouterr().out) == answer(ask("--json", log))


@pytest.mark.computing
def test_a_python_too_old_finds_a_newer_one():
    found = python_choice.find_newer((3, 10))
    assert found and tuple(python_choice.probe_python([found])["version"][:2]) >= (3, 10)
    assert python_choice.find_newer((9, 9)) is None

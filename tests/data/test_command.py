"""`launch.py data` as a person runs it: answers, refusals, odd files, an early end, two at once, a full disk."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = Path(__file__).resolve().parent / "fixtures"
CONTRACT = ("source", "container", "encoding", "format", "confidence", "reason", "mapping", "needs_answer")
CONTRACT += ("rows_read", "rows_used", "rows_quarantined", "rows_filtered", "problems", "stats", "preview")
LIMIT_S = 100


def start(workspace: Path, *words: object, limited: bool = False, **environment: str) -> subprocess.Popen:
    """Start the command with the studio's own Python; `limited`: no file may grow beyond 1 MB."""
    import_resource = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6)); "
    code = (
        import_resource if limited else ""
    ) + "import sys; from studio.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-P", "-c", code, "data", *map(str, words), "--workspace", str(workspace)]
    paths = os.pathsep.join((str(ROOT), str(ROOT / "kernels")))
    environment = {**os.environ, "PYTHONPATH": paths, "FINETUNE_STUDIO_LANGUAGE": "en", **environment}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, cwd=workspace.parent, **pipes)


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr."""
    out, errors = process.communicate(timeout=LIMIT_S)
    return process.returncode, out.decode("utf-8"), errors.decode("utf-8", "replace")


def ask(workspace: Path, *words: object, limited: bool = False, **environment: str) -> tuple[int, dict]:
    """Run the command with --json and return its exit code and its one object."""
    code, out, errors = finish(start(workspace, *words, "--json", limited=limited, **environment))
    assert "Traceback" not in errors + out, errors
    assert out.count("\n") == 1, out
    return code, json.loads(out)


def write_large(path: Path, rows: int = 30_000) -> Path:
    """Write a file that takes a second or two to convert."""
    row = '{"prompt": "question %d ' + "x" * 200 + '", "completion": "answer %d ' + "y" * 200 + '"}\n'
    path.write_text("".join(row % (i, 7 * i) for i in range(rows)), encoding="utf-8")
    return path


@pytest.fixture
def workspace(tmp_path) -> Path:
    return tmp_path / "workspace"


def test_launch_py(tmp_path):
    command = [
        sys.executable,
        str(ROOT / "launch.py"),
        "--here",
        "data",
        str(FIXTURES / "codes" / "E140.jsonl"),
    ]
    command += ["--json", "--workspace", str(tmp_path / "workspace")]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, timeout=LIMIT_S)
    found = json.loads(done.stdout)
    assert (done.returncode, found["rows_read"], found["rows_used"], found["rows_quarantined"]) == (
        1,
        6,
        1,
        5,
    )
    assert not set(CONTRACT) - found.keys()
    assert [(one["code"], one["line"], one["row"], one["count"]) for one in found["problems"]] == [
        ("E140", line, line, 1) for line in range(2, 7)
    ]
    arguments = found["preview"][0]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert arguments == {}


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("formats/kto.jsonl", [], 0),
        ("encodings/cp1252.csv", ["--encoding", "cp1252"], 0),
        ("formats/two_answers.jsonl", ["--map", "completion=answer"], 0),
        ("formats/two_answers.jsonl", [], 1),
        ("codes/E122_turns.jsonl", [], 1),
        ("formats/two_answers.jsonl", ["--map", "completion=answer", "--map", "completion=response"], 2),
        ("formats/two_answers.jsonl", ["--map", "prompt=answer", "--map", "completion=answer"], 2),
        ("formats/two_answers.jsonl", ["--map", "completion"], 2),
        ("formats/two_answers.jsonl", ["--map", "speaker=answer"], 2),
        ("formats/two_answers.jsonl", ["--map", "completion=nothing"], 2),
        ("formats/two_answers.jsonl", ["--format", "dpo"], 2),
        ("jsonl/nowhere.jsonl", [], 2),
        ("hostile/empty.jsonl", [], 2),
        ("hostile/bomb.zip", [], 2),
        ("folders/no_data", [], 2),
    ],
)
def test_exit_code(workspace, monkeypatch, capsys, name, words, code):
    from studio.cli.main import main

    monkeypatch.setenv("FINETUNE_STUDIO_LANGUAGE", "zh-CN")
    assert main(["data", str(FIXTURES / name), "--json", "--workspace", str(workspace), *words]) == code
    found = json.loads(capsys.readouterr().out)
    sentences = list(found["error"].values()) if code == 2 else [one["message"] for one in found["problems"]]
    assert all(0 < len(sentence) <= 300 for sentence in sentences)
    assert all(any("\u4e00" <= sign <= "\u9fff" for sign in sentence) for sentence in sentences)
    if code == 2:
        assert set(found["error"]) == {"what", "why", "fix"}


def test_names_beyond_ascii_under_a_bare_locale(tmp_path, workspace):
    path = tmp_path / "Größe 数据 'a'.jsonl"
    path.write_bytes((FIXTURES / "jsonl" / "chats.jsonl").read_bytes())
    command = [sys.executable, str(ROOT / "launch.py"), "--here", "data", str(path), "--json"]
    bare = {**os.environ, "LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [*command, "--workspace", str(workspace)],
        capture_output=True,
        cwd=tmp_path,
        timeout=LIMIT_S,
        env=bare,
    )
    found = json.loads(done.stdout)
    assert (done.returncode, Path(found["source"]).name, found["rows_used"]) == (0, path.name, 3)


@pytest.mark.computing
@pytest.mark.skipif(os.name == "nt", reason="only on POSIX: names of bytes")
def test_a_name_that_is_no_text(tmp_path, workspace):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/rows-\xff\xfe.jsonl"))
    path.write_bytes((FIXTURES / "jsonl" / "chats.jsonl").read_bytes())
    for _ in range(2):
        code, found = ask(workspace, path)
        assert (code, found["rows_used"]) == (0, 3)


def test_rows_set_aside_keep_their_bytes(tmp_path, workspace, monkeypatch, capsys):
    from studio.cli.main import main

    path, out = FIXTURES / "encodings" / "one_line_cp1252.jsonl", tmp_path / "aside.jsonl"
    assert main(["data", str(path), "--json", "--workspace", str(workspace), "--quarantine", str(out)]) == 1
    assert json.loads(capsys.readouterr().out)["quarantine"] == str(out)
    (entry,) = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    lines = path.read_bytes().splitlines(keepends=True)
    assert (entry["code"], entry["line"], entry["row"], entry["offset"]) == (
        "E110",
        3,
        3,
        len(lines[0] + lines[1]),
    )
    assert base64.b64decode(entry["raw_base64"]) == lines[2].rstrip(b"\n")
    assert entry["message"].startswith("Line 3: ")
    path = FIXTURES / "jsonl" / "blank_lines_crlf.jsonl"
    assert main(["data", str(path), "--json", "--workspace", str(workspace), "--quarantine", str(out)]) == 1
    (entry,) = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    assert (entry["line"], entry["row"]) == (4, 2)
    assert path.read_bytes()[entry["offset"] :].startswith(entry["raw"].rstrip("\r").encode())


def test_a_very_long_name(workspace):
    code, found = ask(workspace, "x" * 5000)
    assert code == 2 and all(len(sentence) <= 300 for sentence in found["error"].values())


@pytest.mark.computing
@pytest.mark.skipif(os.name == "nt", reason="only on POSIX: pipes by name")
def test_pipes_and_links(tmp_path, workspace):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "link.jsonl").symlink_to("nowhere.jsonl")
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes((FIXTURES / "jsonl" / "chats.jsonl").read_bytes())
    os.mkfifo(folder / "test.jsonl")
    with ThreadPoolExecutor(2) as pool:
        names = ("pipe.jsonl", "link.jsonl", "loop.jsonl", "folder")
        answers = list(pool.map(lambda name: ask(workspace, tmp_path / name), names))
    assert [code for code, _ in answers] == [2, 2, 2, 2]
    assert "pipe" in answers[0][1]["error"]["why"] and "link" in answers[1][1]["error"]["why"]


def test_a_line_without_an_end(tmp_path):
    from studio.core.recipe import DatasetSpec
    from studio.data.dataset_report import describe

    path = tmp_path / "long.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "one"}\n{"text": "')
        for _ in range(65):
            file.write(b"x" * 2**20)
        file.write(b'"}\n{"text": "three"}\n')
    found = describe(DatasetSpec(source=str(path)))
    assert [(one["code"], one["line"]) for one in found["problems"]] == [("E101", 2)]
    assert (found["rows_read"], found["rows_used"]) == (3, 2)


def test_a_reader_that_goes_away(workspace):
    process = start(workspace, FIXTURES / "txt" / "paragraphs.txt", "--json", "--rows", 40)
    process.stdout.close()
    errors = process.stderr.read().decode()
    assert process.wait(LIMIT_S) in (0, 1) and "Traceback" not in errors


@pytest.mark.computing
@pytest.mark.skipif(os.name == "nt", reason="only on POSIX: a signal")
def test_an_end_in_the_middle_leaves_nothing_that_is_taken_for_whole(tmp_path, workspace):
    path = write_large(tmp_path / "large.jsonl", 300_000)  # read by several processes
    cache = workspace / "cache" / "data"
    process = start(workspace, path, "--json", "--rows", 0)
    deadline = time.monotonic() + LIMIT_S
    while not list(cache.glob("*.part-*/*")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert process.poll() is None, "it was done before it could be ended"
    group = _children(process.pid)
    process.terminate()
    process.communicate(timeout=LIMIT_S)
    assert not list(cache.glob("*/manifest.json"))
    while any(Path(f"/proc/{one}").exists() for one in group):
        assert time.monotonic() < deadline, "processes are left"
        time.sleep(0.05)
    part = write_large(path, 30_000)
    code, found = ask(workspace, part, "--rows", 0)
    assert (code, found["rows_used"]) == (0, 30_000)


def _children(process: int) -> list[str]:
    """Return the processes that `process` started, where the system tells."""
    path = Path(f"/proc/{process}/task/{process}/children")
    return path.read_text().split() if path.exists() else []


@pytest.mark.computing
def test_two_at_once(tmp_path, workspace):
    path = write_large(tmp_path / "large.jsonl")
    with ThreadPoolExecutor(2) as pool:
        (code, found), again = pool.map(lambda _: ask(workspace, path, "--rows", 1), range(2))
    assert (code, found["rows_used"]) == (0, 30_000) and again == (code, found)
    assert len(list((workspace / "cache" / "data").glob("*/manifest.json"))) == 1


@pytest.mark.computing
@pytest.mark.skipif(os.name == "nt", reason="only on POSIX: a limit of file sizes")
def test_a_full_disk(tmp_path, workspace):
    path = write_large(tmp_path / "large.jsonl")
    code, found = ask(workspace, path, limited=True)
    assert code in (1, 2) and set(found["error"]) == {"what", "why", "fix"}
    assert not list((workspace / "cache" / "data").glob("*/manifest.json"))
    assert not list((workspace / "cache" / "data").glob("*.part-*"))
    code, found = ask(workspace, path, "--rows", 0)
    assert (code, found["rows_used"]) == (0, 30_000)


@pytest.mark.computing
def test_a_file_that_is_cut_while_it_is_read(tmp_path):
    from studio.core.errors import StudioError
    from studio.core.recipe import DatasetSpec
    from studio.data.dataset_report import describe

    path = write_large(tmp_path / "large.jsonl")
    cut = []

    def cut_once(done: int, total: int) -> None:
        if not cut:
            cut.append(os.truncate(path, 3_000_000))

    cache = tmp_path / "cache"
    with pytest.raises(StudioError):
        describe(DatasetSpec(source=str(path)), cache=cache, on_progress=cut_once)
    assert cut and not list(cache.glob("*/manifest.json"))


@pytest.mark.computing
def test_a_file_that_changed_since_is_read_again(tmp_path, workspace):
    path = tmp_path / "rows.jsonl"
    for name, format in (("kto", "kto"), ("rl", "rl")):
        path.write_bytes((FIXTURES / "formats" / f"{name}.jsonl").read_bytes())
        assert ask(workspace, path)[1]["format"] == format


@pytest.mark.computing
def test_expected_objects_through_the_command(workspace, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("fixtures", FIXTURES.parent / "test_fixtures.py")
    fixtures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fixtures)
    from studio.cli.main import main

    monkeypatch.setenv("FINETUNE_STUDIO_LANGUAGE", "en")
    plain = [one for one in fixtures.ENTRIES if not one["options"]][::7]
    assert len(plain) > 20
    for entry in plain:
        words = ["data", str(FIXTURES / entry["source"]), "--json", "--rows", str(fixtures.ROWS)]
        code = main([*words, "--workspace", str(workspace)])
        found, wanted = json.loads(capsys.readouterr().out), entry["expected"]
        assert code == wanted["exit"], entry["source"]
        if "error" in wanted:
            continue
        shown = fixtures.observe(found, wanted)
        assert {**shown, "asks": sorted(shown["asks"])} == {**wanted, "asks": sorted(wanted["asks"])}, entry[
            "source"
        ]
        assert all(len(one["message"]) <= fixtures.MESSAGE_CHARACTERS for one in found["problems"])

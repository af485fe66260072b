"""Bad input: what, why and what to do in one short sentence each, the contract's exit code, nothing half-written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from studio.cli.main import main
from tests.conftest import chat_rows, make_model, write_jsonl
from tests.each_time import every, rarely
from tests.launched import SITECUSTOMIZE, command, environment, launch, list_files, read_answer, write_recipe

SENTENCE_CHARACTERS = 260
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def place(know_machine, tmp_path, monkeypatch):
    """An opened workspace, which is the one that commands use, in which this machine was looked at before."""
    monkeypatch.setenv("FINETUNE_STUDIO_WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.setenv("FINETUNE_STUDIO_LANGUAGE", "en")
    return know_machine().root


@pytest.fixture
def refused(place, capsys, monkeypatch):
    """A function `refused(*words) -> str`: the sentences of a refusal with exit code 2, after which nothing is new."""

    def go(*words: object) -> str:
        capsys.readouterr()
        before = list_files(place)
        said = {}
        for language in ("zh-CN", "en"):
            monkeypatch.setenv("FINETUNE_STUDIO_LANGUAGE", language)
            assert main([*map(str, words), "--child"]) == 2
            captured = capsys.readouterr()
            assert captured.out == ""
            said[language] = [
                line for line in captured.err.splitlines() if not line.startswith(("Starting", "正在启动"))
            ]
            assert len(said[language]) == 3, captured.err
            for line in said[language]:
                assert line.strip() and len(line) <= SENTENCE_CHARACTERS and "Traceback" not in line
        assert said["en"][0] != said["zh-CN"][0] and said["en"][2] != said["zh-CN"][2]
        assert main([*map(str, words), "--child", "--json"]) == 2
        captured = capsys.readouterr()
        error = read_answer(captured.out)["error"]
        assert [error[part] for part in ("what", "why", "fix")] == said["en"]
        assert list_files(place) == before
        return "\n".join(said["en"])

    return go


@pytest.fixture
def small(tmp_path, tiny_models, chat_file):
    """A function `small(base=None, rows=None, **parts) -> Path`: a recipe in a file."""

    def write(base=None, rows=None, **parts):
        return write_recipe(tmp_path, base or tiny_models(), rows or chat_file, **parts)

    return write


@pytest.fixture
def broken_model(tmp_path, tiny_models):
    """A function that copies the tiny model, lets `change(folder)` spoil it, and returns the folder."""

    def spoil(change):
        folder = tmp_path / "spoilt"
        shutil.copytree(tiny_models(), folder)
        change(folder)
        return folder

    return spoil


def test_a_model_folder_that_is_not_there(refused, small, tmp_path):
    said = refused("train", small(base=tmp_path / "nowhere"))
    assert "There is no model" in said and "Check the spelling" in said


def test_a_model_with_pickles_only(refused, small, broken_model):
    folder = broken_model(lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"))
    assert ".bin" in refused("train", small(base=folder))


def test_a_model_cut_short(refused, small, broken_model):
    def cut(folder: Path) -> None:
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1000])

    assert "incomplete" in refused("train", small(base=broken_model(cut)))


def test_a_model_without_a_chat_template(refused, small, tmp_path):
    said = refused("train", small(base=make_model(tmp_path / "plain", template=None)))
    assert "no chat template" in said and "data.template to" in said and "instruct edition" in said


def test_plain_text_with_the_goal_of_answers(refused, small, tmp_path):
    data = write_jsonl(tmp_path / "text.jsonl", [{"text": f"line {i}"} for i in range(20)])
    assert "plain text" in refused("train", small(rows=data, objective="sft"))


@pytest.mark.parametrize(
    "content", every(2, [b"", b"\n\n", b'{"a": 1}\n' * 5, b"\x00\x01\x02", b"{not json}\n" * 5])
)
def test_data_of_which_nothing_can_be_used(refused, small, tmp_path, content):
    data = tmp_path / "data.jsonl"
    data.write_bytes(content)
    refused("train", small(rows=data))


def test_data_that_is_not_there_or_no_file(refused, small, tmp_path):
    assert "no file" in refused("train", small(rows=tmp_path / "nowhere.jsonl"))
    (tmp_path / "empty").mkdir()
    assert "folder" in refused("data", tmp_path / "empty")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="only on systems with pipes among their files")
def test_a_pipe_is_refused_and_not_waited_for(refused, small, tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert "pipe" in refused("train", small(rows=tmp_path / "pipe.jsonl"))


def test_a_recipe_as_the_windows_editor_saves_it(place, small, capsys):
    recipe = small()
    recipe.write_bytes(b"\xef\xbb\xbf" + recipe.read_bytes())
    assert main(["check", str(recipe)]) == 0


def test_a_recipe_without_an_end(refused):
    assert "device" in refused("check", os.devnull)


@pytest.mark.parametrize(
    "words",
    [
        ("--port", "99999999"),
        ("--port", "80x"),
        ("data", "demo", "--rows", "-1"),
        ("data", "demo", "--max-length", "0"),
        ("chat", "run", "--max-new-tokens", "-5"),
        ("chat", "run", "--temperature", "nan"),
    ],
)
def test_a_number_that_is_none_or_out_of_range(refused, words):
    said = refused(*words)
    assert words[-1] in said and "is needed" in said


@pytest.mark.computing
def test_a_terminal_that_lacks_a_sign(tmp_path):
    (tmp_path / "雪.jsonl").write_text('{"text": "雪"}\n', encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "studio.cli",
        "data",
        "雪.jsonl",
        "--workspace",
        str(tmp_path / "studio"),
    ]
    environment = os.environ | {
        "PYTHONIOENCODING": "ascii",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'kernels'}",
    }
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "\\u96ea" in done.stdout


@pytest.mark.computing
def test_one_broken_line_of_ten_is_refused(refused, small, tmp_path):
    data = write_jsonl(tmp_path / "data.jsonl", chat_rows(9))
    data.write_text('{"messages": [\n' + data.read_text(encoding="utf-8"), encoding="utf-8")
    said = refused("train", small(rows=data))
    assert "1 of 10 rows" in said and "Line 1" in said


@pytest.mark.computing
def test_one_broken_line_of_two_thousand_is_left_out_and_counted(place, small, tmp_path, capsys):
    data = write_jsonl(tmp_path / "data.jsonl", chat_rows(2000))
    lines = data.read_text(encoding="utf-8").splitlines()
    lines[700] = lines[700][:20]
    data.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert (
        main(["train", str(small(rows=data, optim={"max_steps": 1})), "--child", "--json", "--events"]) == 0
    )
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    (facts,) = [event["facts"] for event in events if event["kind"] == "data_prepared"]
    assert (facts["rows_read"], facts["rows_used"], facts["rows_refused"]) == (2000, 1999, 1)


def test_a_length_of_nothing(refused, small):
    said = refused("train", small(data={"max_length": 0}))
    assert "0" in said and "8" in said


def test_a_misspelt_key_names_the_nearest(refused, small):
    said = refused("train", small(optim={"lerning_rate": 0.1}))
    assert "optim.lerning_rate" in said and "Did you mean “learning_rate”?" in said


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ('{"version": 1,', "not valid JSON"),
        ("[1, 2]", "braces"),
        rarely("7", "braces"),
        rarely('{"version": 99, "model": {"source": "x"}, "data": {"source": "y"}}', "99"),
        rarely('{"version": "one"}', "one"),
        ("[" * 100_000, "nested too deeply"),
        ('{"name": "\\ud800", "model": {"source": "demo"}, "data": {"source": "demo"}}', "not valid JSON"),
    ],
)
def test_a_recipe_that_is_none(refused, tmp_path, content, word):
    path = tmp_path / "recipe.json"
    path.write_text(content, encoding="utf-8")
    assert word in refused("train", path)


def test_a_recipe_that_is_not_there_or_no_text(refused, tmp_path):
    assert "nowhere.json" in refused("train", tmp_path / "nowhere.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe{}")
    assert "binary.json" in refused("check", tmp_path / "binary.json")
    assert tmp_path.name in refused("train", tmp_path)


@pytest.mark.parametrize("run", ["nobody-1234", "../runs", "a/b", ".", ""])
def test_a_run_that_is_not_there(refused, run):
    assert "There is no run" in refused("resume", run)


def test_a_path_is_no_run_for_any_command(refused):
    assert "There is no run" in refused("chat", "../runs", "--prompt", "hi")
    assert "There is no run" in refused("export", "../runs")


def test_an_unfinished_run_can_neither_chat_nor_be_exported(refused, place, small):
    from studio.engine.run_folder import create_run
    from studio.services.recipes import read_recipe

    run = create_run(place / "runs", read_recipe(str(small()))).run
    assert "no result yet" in refused("chat", run, "--prompt", "hi")
    assert "Resume it" in refused("export", run, "--to", "merged")


def test_settings_that_exclude_each_other(refused, small):
    said = refused("train", small(adapter={"dora": True}, model={"quantization": "int8"}))
    assert "DoRA" in said and "nf4" in said
    assert "LoRA" in refused("train", small(adapter={"method": "full"}, model={"quantization": "nf4"}))


@pytest.mark.computing
def test_an_adapter_that_does_not_fit_ends_the_run_with_a_diagnosis(place, small, tmp_path, capsys):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    other = AutoModelForCausalLM.from_pretrained(make_model(tmp_path / "other", hidden_size=16))
    get_peft_model(other, LoraConfig(target_modules="all-linear")).save_pretrained(tmp_path / "adapter")
    capsys.readouterr()
    assert main(["train", str(small(model={"adapter": "adapter"})), "--child", "--json"]) == 1
    captured = capsys.readouterr()
    answer = read_answer(captured.out)
    assert answer["state"] == "failed" and answer["artifact"] is None
    diagnosis = answer["diagnosis"]
    assert "adapter" in diagnosis["what"] and diagnosis["why"] and diagnosis["fixes"]
    assert all(
        len(said) < SENTENCE_CHARACTERS for said in (diagnosis["what"], diagnosis["why"], *diagnosis["fixes"])
    )
    assert "Traceback" not in captured.err
    folder = place / "runs" / answer["run"]
    assert "Traceback" in (folder / "log.txt").read_text(encoding="utf-8")
    assert not any("staging" in name or name.endswith(".tmp") for name in list_files(place))


def test_a_workspace_below_a_file(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("FINETUNE_STUDIO_LANGUAGE", "en")
    assert main(["runs", "--workspace", str(tmp_path / "file" / "below"), "--json"]) == 2
    error = read_answer(capsys.readouterr().out)["error"]
    assert "cannot be used" in error["what"] and "--workspace" in error["fix"]
    assert (tmp_path / "file").read_text(encoding="utf-8") == ""


def test_a_torch_of_another_build_under_here(tmp_path, small):
    info = tmp_path / "first" / "torch-2.5.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.5.0\n", encoding="utf-8")
    workspace = tmp_path / "workspace"
    done = launch(workspace, "train", small(), "--json", paths=(info.parent,))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    error = read_answer(done.stdout)["error"]
    assert error.keys() == {"what", "why", "fix"} and "torch>=2.11,<2.15 (2.5.0)" in error["what"]
    assert not workspace.exists()


# A file system of 2 MB of its own, in a mount namespace that ends with the shell. $1: where; $2: when it is full.
ON_A_SMALL_DISK = """
mount -t tmpfs -o size=2m none "$1" || exit 77
workspace="$1"; full="$2"; shift 2
fill() { head -c 3000000 /dev/zero >"$workspace/fill" 2>/dev/null; }
if [ "$full" = before ]; then
    fill
    "$@"
    code=$?
else
    "$@" &
    child=$!
    until ls "$workspace"/runs/*/checkpoints/step-00000002 >/dev/null 2>&1; do sleep 0.02; done
    fill
    wait $child
    code=$?
fi
rm "$workspace/fill"
cp -r "$workspace/." "$workspace.after"
exit $code
"""
NAMESPACES = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"])


@pytest.fixture(scope="module")
def namespace(tmp_path_factory):
    """The command in which a file system may be mounted; [] where none is allowed."""
    folder = str(tmp_path_factory.mktemp("mount"))
    for way in NAMESPACES if shutil.which("unshare") else ():
        trial = [*way, "mount", "-t", "tmpfs", "-o", "size=2m", "none", folder]
        if subprocess.run(trial, capture_output=True, check=False).returncode == 0:
            return way
    return []


@pytest.fixture
def short_of_room(namespace, tmp_path):
    """A function that runs `launch.py --here` where the disk is full `before` or fills up `later`; and its workspace.

    Where nothing can be mounted, no file of the workspace may grow beyond some size instead.
    """
    workspace = tmp_path / "workspace"

    def go(
        full: str, *words: object, paths: tuple[Path, ...] = (), **more: str
    ) -> subprocess.CompletedProcess:
        argv, settings = command(*words), {}
        if namespace:
            workspace.mkdir()
            argv = [*namespace, "sh", "-c", ON_A_SMALL_DISK, "sh", str(workspace), full, *argv]
        else:
            import resource

            most = 1000 if full == "before" else 100_000
            settings["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        return subprocess.run(
            argv,
            env=environment(workspace, *paths, **more),
            cwd=tmp_path,
            capture_output=True,
            encoding="utf-8",
            timeout=120,
            check=False,
            **settings,
        )

    return go, tmp_path / "workspace.after" if namespace else workspace


def test_a_disk_that_is_full_from_the_start(short_of_room, namespace, small):
    go, after = short_of_room
    done = go("before", "train", small(), "--json")
    assert done.returncode == 2, done.stderr
    error = read_answer(done.stdout)["error"]
    assert "cannot be used" in error["what"] and "Traceback" not in done.stderr
    assert error["why"] == "The disk that holds it is full." or not namespace
    assert after.is_dir() and not any(path.is_file() for path in after.rglob("*"))


@pytest.mark.computing
def test_a_disk_that_fills_up_in_mid_run(short_of_room, namespace, small, tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf-8")
    go, after = short_of_room
    recipe = small(optim={"max_steps": 200}, run={"save_every": 2})
    done = go("later", "train", recipe, "--json", paths=(site,), TEST_STEP_SLEEP_S="0.1")
    assert done.returncode == 1, done.stderr
    answer = read_answer(done.stdout)
    assert answer["state"] == "failed" and answer["diagnosis"]["fixes"] and "Traceback" not in done.stderr
    assert answer["diagnosis"]["id"] == "disk_full" or not namespace
    assert not any("staging" in name or name.endswith(".tmp") for name in list_files(after))
    checkpoints = list((after / "runs" / answer["run"] / "checkpoints").iterdir())
    assert all((path / "manifest.json").is_file() for path in checkpoints)
    assert checkpoints or not namespace
    resumed = launch(after, "resume", answer["run"], "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert (read_answer(resumed.stdout)["state"], read_answer(resumed.stdout)["steps"]) == ("finished", 200)


def test_guests_by_two_ways_at_once(refused):
    assert "--share and --lan" in refused("--share", "--lan", "--no-browser")

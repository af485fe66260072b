"""The command line's contract: one JSON object, its keys, exit codes, both languages, and what a person reads."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from studio.cli.arguments import build_parser
from studio.cli.console import TOLD_SWAPS, Console
from studio.cli.main import main
from studio.core.codec import event_from_json
from studio.core.events import RunPlanned
from studio.core.facts import BackendPlan, Choice
from studio.core.i18n import load_catalogue, text
from tests.conftest import chat_rows, write_jsonl
from tests.launched import ROOT, RUN_KEYS, command, environment, launch, read_answer, wait_for, write_recipe

COMMANDS = (
    *"studio demo train resume import check plan data doctor explain runs chat".split(),
    *"eval reward serve export wsl bench".split(),
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory, tiny_models, know_machine):
    """A folder with data, a recipe and a workspace."""
    folder = tmp_path_factory.mktemp("shop")
    know_machine(folder / "workspace")
    data = write_jsonl(folder / "chats.jsonl", chat_rows(24))
    (folder / "tiny").symlink_to(tiny_models(), target_is_directory=True)
    write_recipe(folder, Path("tiny"), Path(data.name))
    return folder


@pytest.fixture
def ask(shop, capsys, monkeypatch):
    """A function `ask(*words, code=0) -> dict`: the JSON answer of a command, run here; `ask.err` is its stderr."""
    monkeypatch.setenv("FINETUNE_STUDIO_WORKSPACE", str(shop / "workspace"))
    monkeypatch.setenv("FINETUNE_STUDIO_LANGUAGE", "en")

    def go(*words: object, code: int = 0) -> dict:
        capsys.readouterr()
        assert main([*map(str, words), "--json", "--child"]) == code
        captured = capsys.readouterr()
        go.err = captured.err
        assert "Traceback" not in captured.err
        return read_answer(captured.out)

    return go


@pytest.fixture
def read(shop, capsys, monkeypatch):
    """A function `read(*words, code=0, language="en") -> str`: what a person reads on stdout and stderr."""
    monkeypatch.setenv("FINETUNE_STUDIO_WORKSPACE", str(shop / "workspace"))

    def go(*words: object, code: int = 0, language: str = "en") -> str:
        monkeypatch.setenv("FINETUNE_STUDIO_LANGUAGE", language)
        capsys.readouterr()
        assert main([*map(str, words), "--child"]) == code
        captured = capsys.readouterr()
        return captured.out + captured.err

    return go


@pytest.fixture(scope="module")
def trained(shop):
    """The answer of a finished run, and its events as `--events` told them. Its recipe names its files relatively."""
    import contextlib
    import io

    out, err = io.StringIO(), io.StringIO()
    words = ["train", str(shop / "recipe.json"), "--json", "--events", "--child"]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert main([*words, "--workspace", str(shop / "workspace")]) == 0
    return read_answer(out.getvalue()), err.getvalue().splitlines()


@pytest.mark.computing
def test_train_answers_by_the_contract(trained, shop):
    answer, _ = trained
    assert answer.keys() == RUN_KEYS
    assert (answer["state"], answer["steps"], answer["diagnosis"]) == ("finished", 12, None)
    assert isinstance(answer["loss"], float)
    assert (Path(answer["artifact"]) / "adapter_model.safetensors").is_file()
    assert Path(answer["artifact"]).parent == shop / "workspace" / "runs" / answer["run"]


def test_events_are_json_lines_and_nothing_else(trained):
    _, lines = trained
    events = [json.loads(line) for line in lines if line.startswith("{")]
    assert [line for line in lines if not line.startswith("{")] == []
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["step"] for event in events if event["kind"] == "step_logged"] == list(range(1, 13))
    assert events[-1]["kind"] == "run_finished" and all(event["time_s"] > 0 for event in events)


def test_runs_lists_the_run(trained, ask, read):
    answer, _ = trained
    (entry,) = ask("runs")["runs"]
    assert entry["run"] == answer["run"] and entry["state"] == "finished" and entry["base"] == "tiny-llama"
    assert answer["run"] in read("runs")


def test_a_finished_run_is_not_resumed(trained, ask):
    error = ask("resume", trained[0]["run"], code=2)["error"]
    assert error.keys() == {"what", "why", "fix"} and trained[0]["run"] in error["what"]


def test_chat_answers_once(trained, ask, read):
    run = trained[0]["run"]
    words = ["chat", run, "--prompt", "say 3", "--max-new-tokens", 4]
    answer = ask(*words, "--side", "both")
    assert answer.keys() == {"run", "prompt", "answers", "speed", "slow"} and answer["slow"] is None
    assert answer["answers"].keys() == answer["speed"].keys() == {"base", "tuned"}
    assert all(0 < one["tokens"] <= 4 and one["first_s"] > 0 for one in answer["speed"].values())
    for one in answer["speed"].values():
        assert type(one["ahead"]["value"]) is bool and one["ahead"]["reason"].endswith(".")
    assert ask(*words)["answers"].keys() == {"tuned"}
    said = read(*words)
    assert "Traceback" not in said and answer["answers"]["tuned"].strip() in said
    assert "guessed" in said.lower(), "whether guesses made it faster is told beside how fast it was"


def test_chat_takes_bytes_that_are_no_characters(trained, ask):
    assert ask("chat", trained[0]["run"], "--prompt", "\udcff hi", "--max-new-tokens", 2)["answers"]


def test_chat_goes_on_until_an_empty_line(trained, read, monkeypatch):
    lines = iter(["say 3", "say 4", ""])
    asked = []
    monkeypatch.setattr("builtins.input", lambda prompt: asked.append(prompt) or next(lines))
    assert "empty line" in read("chat", trained[0]["run"], "--max-new-tokens", 2)
    assert asked == ["> "] * 3


@pytest.mark.parametrize("target", ["adapter", "merged"])
def test_export_says_where_and_how_much(trained, ask, target):
    answer = ask("export", trained[0]["run"], "--to", target)
    assert answer.keys() == {"path", "bytes"}
    files = [path for path in Path(answer["path"]).rglob("*") if path.is_file()]
    assert answer["bytes"] == sum(path.stat().st_size for path in files)
    assert any(path.suffix == ".safetensors" for path in files)
    assert not any("staging" in path.name for path in Path(answer["path"]).parent.iterdir())


def test_a_gguf_file_answers_in_llama_cpp_as_the_run_does(trained, ask):
    from studio.models.gguf.llama_cpp import ask as ask_llama_cpp

    answer = ask("export", trained[0]["run"], "--to", "gguf", "--type", "Q8_0")
    folder = Path(answer["path"])
    (file,) = folder.glob("*.gguf")
    assert answer["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    assert {path.name for path in folder.iterdir()} >= {"Modelfile", "README.md", file.name}
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "xllamacpp" in card and "nats" in card and str(folder) not in card
    modelfile = (folder / "Modelfile").read_text(encoding="utf-8")
    assert f"FROM ./{file.name}" in modelfile and "PARAMETER num_ctx" in modelfile
    chat = [[{"role": "user", "content": "Hi"}]]
    assert "Hi" in ask_llama_cpp(file, {"chats": chat})["rendered"][0]
    assert (
        "gguf_q8_0"
        in ask("export", trained[0]["run"], "--to", "gguf", "--type", "q9", code=2)["error"]["fix"]
    )


@pytest.mark.computing
def test_an_adapter_for_llama_cpp_and_a_model_for_ollama(trained, ask):
    folder = Path(ask("export", trained[0]["run"], "--to", "adapter_gguf")["path"])
    (file,) = folder.glob("*.gguf")
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "nats a token from the trained model" in card and f"--lora {file.name}" in card
    folder = Path(ask("export", trained[0]["run"], "--to", "ollama")["path"])
    assert {"Modelfile", "README.md"} < {path.name for path in folder.iterdir()}
    assert "Q4_K_M" in next(folder.glob("*.gguf")).name


@pytest.mark.computing
def test_a_file_of_a_size_that_the_person_names(trained, ask):
    usual = ask("export", trained[0]["run"], "--to", "gguf", "--type", "q6_k")
    answer = ask("export", trained[0]["run"], "--to", "gguf", "--size", f"{usual['bytes'] / 1e6:.3f}MB")
    (file,) = Path(answer["path"]).glob("*-FIT.gguf")
    assert 0.95 * usual["bytes"] < file.stat().st_size <= usual["bytes"]
    assert "Tensors by form:" in (file.parent / "README.md").read_text(encoding="utf-8")
    for wrong in (("--size", "six"), ("--within", "1")):
        assert wrong[1] in ask("export", trained[0]["run"], "--to", "gguf", *wrong, code=2)["error"]["what"]
    assert "MB" in ask("export", trained[0]["run"], "--to", "gguf", "--size", "1KB", code=2)["error"]["why"]


def test_export_into_a_folder_of_the_persons_own(trained, ask, tmp_path):
    folder = tmp_path / "out"
    assert ask("export", trained[0]["run"], "--folder", folder)["path"] == str(folder)
    assert ask("export", trained[0]["run"], "--folder", folder, code=2)["error"]["fix"]
    assert "adapter, merged" in ask("export", trained[0]["run"], "--to", "onnx", code=2)["error"]["fix"]


def test_check_tells_earlier_names_of_keys_and_reads_them(ask, shop, tmp_path):
    recipe = json.loads((shop / "recipe.json").read_text(encoding="utf-8"))
    recipe["data"]["source"] = str(shop / recipe["data"]["source"])
    recipe["model"]["source"] = str(shop / recipe["model"]["source"])
    recipe["limits"] = {"device": "cpu", "trial": False}
    recipe.pop("run", None)
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(recipe), encoding="utf-8")
    assert ask("check", path, code=0)["ok"]
    assert "limits → run" in ask.err
    assert "limits" not in (ask("check", shop / "recipe.json", code=0), ask.err)[1]


def test_check_finds_every_problem_at_once(ask, shop, tmp_path, tiny_models):
    assert ask("check", shop / "recipe.json") == {"ok": True, "problems": []}
    bad = write_recipe(
        tmp_path,
        tmp_path / "nowhere",
        tmp_path / "nothing.jsonl",
        data={"max_length": 0},
        optim={"learning_rate": -1},
        adapter={"method": "full"},
        model={"quantization": "nf4"},
    )
    answer = ask("check", bad, code=2)
    assert answer.keys() == {"ok", "problems"} and answer["ok"] is False
    assert all({"field", "message", "fix"} <= problem.keys() for problem in answer["problems"])
    fields = {problem["field"] for problem in answer["problems"]}
    wrong = {"model.source", "data.source", "data.max_length", "optim.learning_rate", "model.quantization"}
    assert wrong <= fields
    said = ask("train", bad, code=2)["error"]
    assert len(said["problems"]) == len(answer["problems"])
    typed = write_recipe(tmp_path, tiny_models(), shop / "chats.jsonl", optim={"lerning_rate": 1}, sed=7)
    problems = ask("check", typed, code=2)["problems"]
    assert [problem["field"] for problem in problems] == ["sed", "optim.lerning_rate"]
    assert "seed" in problems[0]["fix"] and "learning_rate" in problems[1]["fix"]


def test_a_warning_does_not_refuse(ask, shop, tmp_path, tiny_models):
    recipe = write_recipe(tmp_path, tiny_models(), shop / "chats.jsonl", optim={"learning_rate": 0.5})
    answer = ask("check", recipe)
    assert answer["ok"] is True and [problem["severity"] for problem in answer["problems"]] == ["warning"]


def test_plan_says_what_would_be_used(ask, read, shop):
    answer = ask("plan", shop / "recipe.json")
    assert answer.keys() == {
        "plan", "decoder", "learning_rate", "peak_bytes", "policy", "slower", "time", "untouched",
    }  # fmt: skip
    assert answer["decoder"]["value"] is False and "processor" in answer["decoder"]["reason"]
    assert {"device", "dtype", "attention", "quantization", "optimizer", "kernels"} <= answer["plan"].keys()
    assert all(isinstance(size, int) and size >= 0 for size in answer["peak_bytes"].values())
    assert answer["plan"]["device"].keys() == {"value", "reason"} and answer["plan"]["device"]["reason"]
    said = read("plan", shop / "recipe.json")
    assert "precision" in said and "False" not in said


@pytest.mark.computing
def test_plan_says_what_gets_no_adapter_in_the_words_of_train(ask, read, shop, tiny_models, tmp_path):
    assert ask("plan", shop / "recipe.json")["untouched"] == []
    recipe = write_recipe(tmp_path, tiny_models("qwen3_moe"), shop / "chats.jsonl", optim={"max_steps": 1})
    told = ask("plan", recipe)["untouched"]
    assert any("rank" in one and "million" in one for one in told), "what each expert gets"
    assert any("gate" in one and "%" in one for one in told)
    assert all(one in read("plan", recipe) for one in told)
    run = ask("train", recipe)["run"]
    events = (shop / "workspace" / "runs" / run / "events.jsonl").read_text(encoding="utf-8").splitlines()
    planned = next(
        event for line in events if isinstance(event := event_from_json(json.loads(line)), RunPlanned)
    )
    say = load_catalogue("en").say
    assert [say(one) for one in planned.swaps if one.id in TOLD_SWAPS] == told


@pytest.mark.computing
@pytest.mark.parametrize(
    ("language", "words"), [("en", "28 of 28 matrices"), ("zh-CN", "28 个矩阵中有 28 个")]
)
def test_a_run_says_what_of_its_base_is_held_in_how_many_bits(read, tmp_path, language, words):
    recipe = {
        "model": {"source": "demo", "quantization": "mixed"},
        "data": {"source": "demo", "validation_share": 0.0},
        "optim": {"max_steps": 1},
        "run": {"trial": False, "device": "cpu", "samples": 0},
    }
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps(recipe), encoding="utf-8")
    assert words not in read("plan", path, language=language)
    told = read("train", path, language=language)
    assert words in told and "1.8 MB" in told


def test_data_says_what_it_is(ask, read, shop, tmp_path):
    answer = ask("data", shop / "chats.jsonl", "--model", shop / "tiny", "--rows", 2)
    assert (answer["format"], answer["rows_read"], answer["rows_used"]) == ("messages", 24, 24)
    first = answer["preview"][0]
    assert len(answer["preview"]) == 2 and "say 0" in first["text"]
    assert "".join(token["text"] for token in first["tokens"] if token["trained"]).startswith("it is 0")
    assert "say 0" in read("data", shop / "chats.jsonl")
    odd = write_jsonl(tmp_path / "odd.jsonl", [{"a": "one thing", "b": "another one"}] * 4)
    unclear = ask("data", odd, code=1)
    assert unclear["format"] is None and unclear["needs_answer"][0]["choices"]
    assert "Traceback" not in read("data", odd, code=1)
    assert (
        ask("data", odd, "--map", "a", code=2)["error"]["fix"]
        == "Write role=column, such as prompt=question."
    )


def test_doctor_judges_this_machine_or_a_recorded_one(ask, tmp_path):
    answer = ask("doctor")
    assert {"verdict", "backend", "reasons", "problems", "offers", "facts"} <= answer.keys()
    recorded = tmp_path / "facts.json"
    recorded.write_text(json.dumps(answer["facts"] | {"cores": 96}), encoding="utf-8")
    assert ask("doctor", "--facts", recorded)["facts"]["cores"] == 96


def test_nothing_is_sent_without_a_repository(ask):
    assert "--repo" in ask("export", "r", "--to", "hub", code=2)["error"]["fix"]


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["trian", "r.json"], "train"),
        (["chatt"], "chat"),
        (["train"], "--help"),
        (["runs", "--nonsense"], "--help"),
        (["--port", "many"], "--help"),
        (["xyzzy"], "--help"),
    ],
)
def test_a_slip_of_the_pen_is_refused_with_a_hint(ask, words, fix):
    error = ask(*words, code=2)["error"]
    assert error.keys() == {"what", "why", "fix"} and fix in error["fix"]


def test_options_may_stand_before_the_command(shop, capsys):
    assert main(["--json", "--workspace", str(shop / "elsewhere"), "runs"]) == 0
    assert read_answer(capsys.readouterr().out) == {"runs": []}


@pytest.mark.parametrize("language", ["en", "zh-CN"])
@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_every_command_explains_itself(name, language, capsys, monkeypatch):
    monkeypatch.setenv("FINETUNE_STUDIO_LANGUAGE", language)
    with pytest.raises(SystemExit) as ended:
        main([*filter(None, [name]), "-h"])
    said = capsys.readouterr().out
    assert ended.value.code == 0 and "cli.help" not in said
    assert bool(re.search("[\u4e00-\u9fff]", said)) == (language == "zh-CN")


@pytest.mark.parametrize("language", ["en", "zh-CN"])
def test_the_overview_names_every_command(language):
    """What `--help` prints before anything is installed: a text of its own, which no parser makes."""
    named = re.findall(r"launch\.py ([a-z]+) ", load_catalogue(language).say(text("install.help")))
    assert {*named} - {"install", "test"} == {*COMMANDS} - {"studio"}


def test_every_option_has_help():
    catalogue = load_catalogue("en")
    (commands,) = (action for action in build_parser(catalogue)._actions if action.dest == "command")
    assert set(commands.choices) == set(COMMANDS)
    for name, parser in commands.choices.items():
        for action in parser._actions:
            assert action.help and "cli.help" not in action.help, (name, action.dest)


def test_plan_says_the_learning_rate_and_who_chose_it(ask, read, tmp_path):
    """Of nothing set, of a method, of all weights, and one that is as the usual one but set."""
    for optim, more, value, told in (
        ({}, {}, 2e-4, "where the data are examples"),
        ({}, {"objective": "dpo"}, 5e-6, "Usual for this"),
        ({}, {"objective": "sft", "adapter": {"method": "full"}}, 2e-5, "Usual for this"),
        ({"learning_rate": 2e-4}, {"objective": "dpo"}, 2e-4, "The recipe sets it"),
    ):
        recipe = tmp_path / "recipe.json"
        words = {"model": {"source": "demo"}, "data": {"source": "demo"}, "optim": optim, **more}
        recipe.write_text(json.dumps(words), encoding="utf-8")
        assert ask("plan", recipe)["learning_rate"]["value"] == value
        (line,) = (one for one in read("plan", recipe).splitlines() if one.startswith("learning rate"))
        assert f"{value:g}: " in line and told in line


def test_chinese_is_spoken_everywhere(read, shop, trained):
    for words, code in (
        (["runs", "--nonsense"], 2),
        (["check", shop / "recipe.json"], 0),
        (["plan", shop / "recipe.json"], 0),
        (["data", shop / "chats.jsonl"], 0),
        (["doctor"], 0),
        (["resume", "nobody"], 2),
        (["export", trained[0]["run"]], 0),
    ):
        assert re.search("[\u4e00-\u9fff]", read(*words, code=code, language="zh-CN")), words


def on_a_terminal(*words: object, workspace: Path, columns: int = 80) -> tuple[int, str]:
    """Run the studio on a pseudo-terminal and return its exit code and every byte that it drew."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(*words),
        env=environment(workspace, COLUMNS=str(columns), TERM="xterm"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=workspace.parent,
    )
    os.close(theirs)
    drawn = b""
    while True:
        try:
            if select.select([ours], [], [], 120)[0]:
                drawn += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
    os.close(ours)
    return process.wait(), drawn.decode("utf-8")


@pytest.mark.computing
def test_a_person_at_a_terminal_sees_a_moving_bar_and_plain_words(shop):
    code, drawn = on_a_terminal("train", shop / "recipe.json", workspace=shop / "screen", columns=60)
    assert code == 0, drawn
    steps = re.findall(r"\r(\[=* *\] step (\d+)/12[^\r\n]*)", drawn)
    assert [int(step) for _, step in steps] == list(range(1, 13))
    assert all(len(line) < 60 for line, _ in steps), "a line that wraps cannot be drawn over"
    lines = [re.sub(r".*\r(?!$)", "", line).strip() for line in drawn.replace("\r\n", "\n").split("\n")]
    assert lines[0].startswith("Starting") and "Training" in lines
    assert re.fullmatch(r"Run try-\w{4} is finished: .*adapter", lines[-2])
    for noise in ("Warning", "Traceback", "\x1b", "it/s", "torch", "deprecat"):
        assert noise not in drawn, drawn


@pytest.mark.computing
def test_a_real_process_prints_one_object_in_chinese(shop):
    done = launch(shop / "chinese", "train", shop / "recipe.json", "--json", FINETUNE_STUDIO_LANGUAGE="zh-CN")
    assert done.returncode == 0 and read_answer(done.stdout)["state"] == "finished"
    assert re.search("[\u4e00-\u9fff]", done.stderr)


# An export that takes its time, of a run that there is no need to train for it.
SLOW_EXPORT = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from studio.cli.main import main
from studio.core.i18n import literal
from studio.services import exports
from studio.services.desk import Desk
from studio.services.chat_service import ChatService
from studio.engine.exporters.exporter import Exporter

def write(job):
    (job.target / "half").write_bytes(b"x" * 1000)
    for _ in range(600):
        job.begin(literal("slowly"))
        time.sleep(0.05)

exports.get_known_exporter = lambda target: Exporter(
    name="adapter", size_bytes=lambda job: 1, memory_bytes=lambda job: 1, write=write, load_lines=lambda *_: ()
)
folder = SimpleNamespace(path=Path(sys.argv[-1]) / "r1", run="r1")
record = SimpleNamespace(adapter="", artifact="adapter", base_hash="")
parts = {"folder": folder, "facts": SimpleNamespace(name="tiny"), "plan": None}
ChatService.find_place = lambda self, run: ""
Desk._find_result = lambda self, run, place: SimpleNamespace(record=record, place="", **parts)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.computing
def test_ctrl_c_in_an_export_leaves_nothing_half_written(tmp_path):
    run = tmp_path / "w" / "r1"
    (run / "adapter").mkdir(parents=True)
    (run / "adapter" / "weights").write_bytes(b"w")
    (run / "recipe.json").write_text("{}", encoding="utf-8")
    words = ["export", "r1", "--json", "--folder", str(tmp_path / "out"), "--workspace", str(tmp_path / "w")]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_EXPORT, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        env=os.environ
        | {
            "FINETUNE_STUDIO_LANGUAGE": "en",
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "kernels"))),
        },
        text=True,
    )
    try:
        half = tmp_path / ".out.staging" / "half"
        wait_for(half.exists, 60)
        process.send_signal(signal.SIGINT)
        answer, _ = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 2 and "stopped" in answer
    assert [path.name for path in tmp_path.iterdir()] == ["w"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only on Linux: a place that is always full")
@pytest.mark.computing
@pytest.mark.parametrize("full", ["stdout", "stderr"])
def test_a_full_place_for_what_is_told_ends_nothing(shop, trained, full):
    """The work is done: only who waits for the answer is told, and on the other stream."""
    words = [sys.executable, "-m", "studio.cli", "runs", "--workspace", str(shop / "workspace")]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "kernels")))}
    with open("/dev/full", "w") as place:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | {full: place}
        done = subprocess.run(words, env=variables, text=True, timeout=60, **streams)
    if full == "stderr":
        assert done.returncode == 0 and done.stdout
    else:
        assert done.returncode == 1
        assert "could not be written to stdout" in done.stderr and "checkpoint" not in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only on Linux: a place that is always full")
def test_progress_that_cannot_be_shown_stops_nothing():
    words = (
        "import sys; from studio.cli.console import Console; from studio.core.i18n import load_catalogue, text;"
        "c = Console(load_catalogue('en'), events=True); c.say(text('cli.starting')); c.say(text('cli.starting'));"
        "c.answer({'a': 1}, ['done'])"
    )
    variables = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "kernels")))}
    with open("/dev/full", "w") as place:
        done = subprocess.run(
            [sys.executable, "-c", words], env=variables, stdout=subprocess.PIPE, stderr=place, text=True
        )
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_what_stays_as_it_is_is_told(capsys):
    console = Console(load_catalogue("en"))
    swaps = (text("run.decoder"), text("run.towers", names="model.visual"))
    choice = Choice(value="cpu", reason=text("run.decoder"))
    names = {one.name for one in dataclasses.fields(BackendPlan) if one.type == "Choice"}
    plan = BackendPlan(**dict.fromkeys(names, choice), kernels={})
    console.show(RunPlanned(seq=1, time_s=1.0, plan=plan, swaps=swaps))
    told = capsys.readouterr().err
    assert "model.visual" in told and console.catalogue.say(text("run.decoder")) not in told

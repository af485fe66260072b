"""The Modelfile: read back it says what was meant; a stand-in for Ollama's program is called as it wants to be."""

from __future__ import annotations

import json
import re
import shutil
from types import SimpleNamespace

import pytest

from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec
from studio.data.conversation import Conversation, Message
from studio.engine.exporters import gguf_file, ollama
from studio.engine.exporters.modelfile import make_modelfile
from studio.models.catalog import DEMO_MODEL

PARTS = re.compile(
    r'^(FROM|REQUIRES|TEMPLATE|SYSTEM|PARAMETER) (?:"""(.*?)"""|(.*?))$', re.MULTILINE | re.DOTALL
)


def read(words):
    """Return what Ollama's own rules read out of a Modelfile: (instruction, value) in their order."""
    found = [(kind, quoted or bare) for kind, quoted, bare in PARTS.findall(words)]
    assert PARTS.sub("", words).strip() == ""
    return found


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(DEMO_MODEL, tmp_path / "demo")
    return tmp_path / "demo"


def make(folder, chats=(), **more):
    spec = DatasetSpec(source="demo", **more)
    return make_modelfile("m.gguf", folder, spec, chats, adds_begin=False, context=2048)


def test_it_says_the_file_the_template_and_where_answers_end(folder):
    generation = {"eos_token_id": [0, 2], "temperature": 0.7, "repetition_penalty": 1.1, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    made = make(folder, system_prompt='Be short.\nBe "kind".')
    found = read(made.words)
    assert found[:2] == [("FROM", "./m.gguf"), ("REQUIRES", "0.30.0")] and made.template == "chatml"
    values = dict(found)
    assert (
        values["TEMPLATE"].startswith("{{- range .Messages") and values["SYSTEM"] == 'Be short.\nBe "kind".'
    )
    parameters = [value for kind, value in found if kind == "PARAMETER"]
    from transformers import AutoTokenizer

    ends = AutoTokenizer.from_pretrained(folder).convert_ids_to_tokens([0, 2])
    assert parameters == [
        "num_ctx 2048",
        "temperature 0.7",
        "repeat_penalty 1.1",
        *[f'stop "{one}"' for one in ends],
    ]
    assert made.notes == ()


def test_a_template_of_its_own_is_left_to_the_file_and_that_is_said(folder):
    template = folder / "chat_template.jinja"
    words = "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
    template.write_text(words, encoding="utf-8")
    made = make(folder)
    assert made.template == "" and "TEMPLATE" not in made.words
    assert [note.id for note in made.notes] == ["export.ollama.own_template"]


def test_chats_that_ollama_lays_out_otherwise_are_counted(folder):
    twice = Conversation(messages=(Message("user", "a"), Message("user", "b"), Message("assistant", "c")))
    once = Conversation(messages=(Message("user", "a"), Message("assistant", "c")))
    (note,) = make(folder, [twice, once, twice]).notes
    assert (note.values["count"], note.values["total"], note.values["reason"].id) == (2, 3, "ollama.merged")


def test_words_that_would_end_a_quotation_are_left_out(folder):
    assert "SYSTEM" not in make(folder, system_prompt='say """').words


STAND_IN = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/asked"
case "$1" in {fails}) echo "first line" >&2; echo "Error: no room" >&2; exit 1;; esac
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job whose GGUF file is written by a stand-in: what is tested is what Ollama's program is asked."""

    def write(mix, job):
        (job.target / "README.md").write_text("card\n", encoding="utf-8")

    monkeypatch.setattr(gguf_file, "write", write)
    target, programs = tmp_path / "out", tmp_path / "bin"
    target.mkdir()
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    facts, record = SimpleNamespace(name="Org/Big Model"), SimpleNamespace(name="my RUN")
    return SimpleNamespace(
        target=target, programs=programs, facts=facts, record=record, begin=lambda phase: None
    )


def install(job, fails):
    program = job.programs / "ollama"
    program.write_text(STAND_IN.format(fails=fails), encoding="utf-8")
    program.chmod(0o755)


def test_the_model_is_created_shown_and_asked(job):
    install(job, "nothing")
    ollama.write(job)
    name = "big-model-my-run"
    asked = (job.programs / "asked").read_text(encoding="utf-8").splitlines()
    assert asked == [f"create {name} -f Modelfile", f"show --modelfile {name}", f"run {name} Say hello."]
    assert f"ollama run {name}" in (job.target / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("fails", "last"), [("create", "create"), ("run", "rm")])
def test_what_ollama_refuses_is_told_in_its_words_and_nothing_stays(job, fails, last):
    install(job, fails)
    with pytest.raises(StudioError) as refused:
        ollama.write(job)
    assert refused.value.why.values["reason"] == "Error: no room"
    asked = (job.programs / "asked").read_text(encoding="utf-8").splitlines()
    assert asked[-1].startswith(last)


def test_without_ollama_the_folder_is_what_there_is(job, monkeypatch):
    monkeypatch.setenv("PATH", str(job.programs))
    ollama.write(job)
    assert (job.target / "README.md").read_text(encoding="utf-8") == "card\n"

"""A template is tried in a child process first: endless, swelling and prying ones never run in ours."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest

from studio.core.errors import StudioError
from studio.data import template_sandbox
from studio.data.conversation import Conversation, Message
from studio.data.render import Renderer
from studio.data.template_sandbox import TemplateVerdict, judge, require_safe
from studio.data.templates.catalogue import list_names, read_family
from tests.each_time import every

LOOP = "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3
DOUBLING = "{% set ns = namespace(x='ab') %}{% for m in messages %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}"
LARGE = {
    "one huge word": "{{ 'a' * 4000000000 }}",
    "doubling with each turn": DOUBLING,
    "much of little": "{% for m in messages %}{% for i in range(9999) %}{{ m.content }}{% endfor %}{% endfor %}",
    "a huge file": " " * (template_sandbox.SOURCE_CHARACTERS + 1),
    "in a macro": "{% macro f(n) %}{% for i in range(99999) %}{{ 'ab' * 9999 }}{% endfor %}{% endmacro %}{{ f(1) }}",
}
PRYING = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "by key": "{{ ''['__class__'] }}",
    "by filter": "{{ messages | attr('__class__') }}",
    "in pieces": "{% set a = '__cla' ~ 'ss__' %}{{ ''[a]['mro']() }}",
    "by format": "{{ '{0.__class__}'.format(messages) }}",
    "globals": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "where no probe gets": "{% if messages | length > 999 %}{{ ''.__class__ }}{% endif %}",
    "namespace": "{% set ns = namespace(_x=1) %}{{ ns }}",
}


@pytest.mark.parametrize("name", every(2, LARGE))
def test_templates_that_swell(name):
    assert judge(LARGE[name]).fault == "large"


@pytest.mark.parametrize("name", every(2, PRYING))
def test_templates_that_pry(name):
    assert judge(PRYING[name]).fault == "escape"


def test_template_without_end(monkeypatch):
    monkeypatch.setattr(template_sandbox, "TIME_S", 1.5)
    began = time.monotonic()
    assert judge(LOOP).fault == "endless"
    assert 1.5 <= time.monotonic() - began < template_sandbox.WAIT_S


@pytest.mark.skipif(os.name == "nt", reason="Windows stops no process by a signal")
def test_a_template_whose_process_is_kept_waiting_is_not_endless(monkeypatch):
    """As on a machine that is busy: what counts is the processor's time, not the clock's."""
    monkeypatch.setattr(template_sandbox, "TIME_S", 3.0)
    start = template_sandbox._start

    def held(given, answer):
        child = start(given, answer)
        os.kill(child.pid, signal.SIGSTOP)
        threading.Timer(4.0, os.kill, (child.pid, signal.SIGCONT)).start()
        return child

    monkeypatch.setattr(template_sandbox, "_start", held)
    began = time.monotonic()
    assert judge("{{ messages[0].content }} waited").fault == ""
    assert time.monotonic() - began >= 4.0


def test_what_is_no_template(english):
    with pytest.raises(StudioError) as refusal:
        require_safe("line one\n{% for %}")
    assert "line 2" in english(refusal.value.why)


def test_harmless_templates():
    for source in (
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{{ raise_exception('always') }}",
        "{% set line = '________' %}{{ line }}{% for m in messages %}{{ m['content'] }}{% endfor %}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}",
    ):
        assert judge(source) == TemplateVerdict()


def test_the_catalogue_is_harmless_too():
    for name in list_names():
        assert template_sandbox.try_out(read_family(name)) == TemplateVerdict(), name


def test_verdicts_are_kept_by_the_text_of_the_template(tmp_path, monkeypatch):
    good, bad = "{{ messages[0].content }} kept", "{{ ''.__class__ }} kept"
    assert judge(good, tmp_path) == TemplateVerdict() and judge(bad, tmp_path).fault == "escape"
    files = sorted((tmp_path / "templates").iterdir())
    assert len(files) == 2
    assert sorted(json.loads(file.read_text())["fault"] for file in files) == ["", "escape"]

    def fail(source):
        raise AssertionError("tried again")

    monkeypatch.setattr(template_sandbox, "_judge_once", fail)
    assert judge(good, tmp_path) == TemplateVerdict() and judge(bad, tmp_path).fault == "escape"
    with pytest.raises(AssertionError):
        judge(good + " ", tmp_path)


def test_a_damaged_verdict_is_made_anew(tmp_path):
    source = "{{ messages[0].content }} anew"
    judge(source, tmp_path)
    (file,) = (tmp_path / "templates").iterdir()
    file.write_text("{", encoding="utf-8")
    assert judge(source, tmp_path) == TemplateVerdict()
    assert json.loads(file.read_text(encoding="utf-8"))["fault"] == ""


def test_the_renderer_asks_before_it_uses_a_template(tokenizers_of, tmp_path, english):
    tokenizer = tokenizers_of[0]("{{ messages[0].__class__ }}", ("</s>",))
    with pytest.raises(StudioError) as refusal:
        Renderer(tokenizer, "answers", cache=tmp_path)
    assert "__class__" in english(refusal.value.why)
    # Another template of the catalogue makes the rest of the model usable.
    layout = Renderer(tokenizer, "answers", "zephyr", cache=tmp_path).lay_out(
        Conversation(messages=(Message("user", "q"), Message("assistant", "a")))
    )
    assert "q" in layout.text


def test_the_child_loads_no_heavy_library():
    import subprocess
    import sys

    code = "import sys, studio.data.template_sandbox as c; c.try_out('{{ messages }}'); print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert not {"torch", "transformers", "numpy", "datasets"} & set(eval(done.stdout))

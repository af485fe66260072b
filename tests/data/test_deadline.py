"""A template that comes to no end over certain rows is interrupted, wherever it is; what ends in time is left alone."""

from __future__ import annotations

import copy
import threading
import time

import pytest

from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec
from studio.data import deadline as module
from studio.data.convert import convert
from studio.data.deadline import Deadline
from studio.data.preview import preview
from studio.data.render import Renderer
from studio.data.template import ChatTemplate
from studio.data.tokens import tokenise
from tests.each_time import some

TRIGGER = "{% if messages | length > 2 and messages[0].content.startswith('7') %}STUCK{% endif %}"
PLAIN = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
STUCK = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a loop's condition": "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "a macro that calls itself": "{% macro f(n) %}{{ n and f(n - 1) ~ f(n - 1) }}{% endmacro %}{{ f(60) }}",
    "filters": "{% for a in range(99999) %}{{ range(99999) | select('odd') | list | length }}{% endfor %}",
}
ROWS = [
    {"messages": [{"role": role, "content": f"{row} words"} for role in ("user", "assistant") * 2]}
    for row in range(9)
]


def make(tmp_path, jsonl, tokenizer, name: str):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = TRIGGER.replace("STUCK", STUCK[name]) + PLAIN
    spec = DatasetSpec(source=str(jsonl(tmp_path / "a.jsonl", ROWS)))
    return spec, Renderer(tokenizer, "answers"), tokenizer


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(module.Deadline.__init__, "__defaults__", (1.0,))


@pytest.mark.parametrize("name", some(STUCK, "loops"))
def test_a_run_is_refused_with_the_row(tmp_path, jsonl, tokenizer_of, english, name):
    spec, renderer, _ = make(tmp_path, jsonl, tokenizer_of("chatml"), name)
    began = time.monotonic()
    with pytest.raises(StudioError) as refused:
        tokenise(convert(spec, tmp_path / "cache"), renderer, spec, tmp_path / "tokens")
    assert time.monotonic() - began < 20
    assert "row 8" in english(refused.value.what) and "1 seconds" in english(refused.value.why)
    assert not any(path.is_dir() for path in (tmp_path / "tokens").iterdir()), "nothing half-done is kept"


@pytest.mark.computing
def test_the_preview_ends_too(tmp_path, jsonl, tokenizer_of):
    spec, _, tokenizer = make(tmp_path, jsonl, tokenizer_of("chatml"), "loops")
    shown = preview(spec, tokenizer, rows=9, cache=tmp_path / "cache")
    assert shown.refusal.what.id == "data.template.row" and shown.refusal.what.values["row"] == 8


@pytest.mark.computing
def test_many_rows_in_time_are_not_interrupted():
    with Deadline(0.3) as deadline:
        for row in range(8):
            deadline.begin(row)
            time.sleep(0.1)
        deadline.rest()
        time.sleep(0.6)


@pytest.mark.computing
def test_a_row_that_ends_in_the_last_moment_is_refused_or_not_but_nothing_comes_later():
    for _ in range(4):
        try:
            with Deadline(0.2) as deadline:
                deadline.begin(3)
                until_s = time.monotonic() + 0.3
                while time.monotonic() < until_s:
                    pass
        except StudioError as error:
            assert error.what.values == {"row": 3}
        sum(range(100_000))  # an interruption that is still under way would end this
    assert "deadline" not in [thread.name for thread in threading.enumerate()]


def test_another_failure_stays_what_it_is():
    with pytest.raises(KeyError), Deadline(0.2) as deadline:
        deadline.begin(1)
        raise KeyError("x")


@pytest.mark.parametrize(
    "words",
    ["{{ 9 ** (9 ** 9) }}", "{{ 'a' * 4000000000 }}", "{{ [1] * 10 ** 10 }}", "{{ '%999999999d' % 1 }}"],
)
def test_one_operator_makes_nothing_huge(words):
    began = time.monotonic()
    assert ChatTemplate(words, {}).try_render(()) is None
    assert time.monotonic() - began < 2


def test_ordinary_operators_compute():
    words = "{{ 3 * 4 }} {{ '=' * 5 }} {{ 2 ** 10 }} {{ 7 % 2 }} {{ '%s-%05d' % ('a', 7) }} {{ 2.5 * 2 }}"
    assert ChatTemplate(words, {}).try_render(()) == "12 ===== 1024 1 a-00007 5.0"

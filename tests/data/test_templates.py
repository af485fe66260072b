"""The catalogue of chat templates, templates of a person's own, and that ours render as transformers does."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec
from studio.data.conversation import Conversation, Message
from studio.data.render import Renderer
from studio.data.row import RowError
from studio.data.template import PROBES, ChatTemplate, compile_like
from studio.data.template_sandbox import TOOL_PROBE, TOOLS
from studio.data.templates.catalogue import (
    FAMILIES,
    difference,
    list_names,
    read_choice,
    read_family,
    recognise,
)
from tests.each_time import every

CHAT = Conversation(messages=(Message("user", "q"), Message("assistant", "a")))
SPECIALS = ("</s>", "<s>")


def vendor_templates() -> list[Path]:
    import trl

    found = sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))
    assert len(found) > 30
    return found


def test_the_catalogue_holds_the_common_families():
    wanted = "chatml llama2 llama3 qwen2 qwen3 mistral gemma2 gemma3 phi3 phi4 deepseek zephyr command-r vicuna alpaca"
    assert set(wanted.split()) <= set(list_names()) == set(FAMILIES)


@pytest.mark.parametrize("name", list_names())
def test_every_family_is_a_template_and_recognised(name, tokenizers_of):
    source = read_family(name)
    assert source.startswith("{#-") and recognise(source) == name
    assert difference(source, source) == []
    layout = Renderer(tokenizers_of[0](None, SPECIALS, bos="<s>"), "answers", name).lay_out(CHAT)
    assert len(layout.trained) == 1 and layout.notes == ()
    # Without a first or an end token of its own a tokenizer can still use it.
    ChatTemplate(source, {}).render(PROBES[0])


def test_vendor_templates_are_recognised():
    wanted = {
        **{
            "llama3": "llama3",
            "llama3_1": "llama3.1",
            "qwen2_5": "qwen2",
            "qwen3": "qwen3",
            "gemma": "gemma2",
        },
        **{"gemma3": "gemma3", "phi3": "phi3", "deepseekv3": "deepseek", "cohere": "command-r", "gptoss": ""},
    }
    sources = {path.stem: path.read_text(encoding="utf-8") for path in vendor_templates()}
    assert {name: recognise(sources[name]) for name in wanted} == wanted


def test_difference_shows_where_a_template_departs():
    own = read_family("chatml")
    assert difference(own.replace("<|im_end|>", "<|end|>"), own)
    lines = difference(own.replace("'\\n' + message.content", "' ' + message.content"), own)
    assert "-<|im_start|>user\\n" in lines and "+<|im_start|>user ask 1<|im_end|>\\n" in lines
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + own
    assert "+(refused)" in difference(refuses, own)


def test_families_are_what_the_vendors_write():
    """Ours agree with the templates that trl holds; where the vendor's differs, the difference is known."""
    sources = {path.stem: path.read_text(encoding="utf-8") for path in vendor_templates()}
    same = {"llama3": "llama3", "phi3_5": "phi3", "cohere": "command-r", "qwen2_5": "qwen2", "qwen3": "qwen3"}
    for vendor, name in {**same, "gemma": "gemma2", "llama3_1": "llama3.1"}.items():
        assert difference(sources[vendor], read_family(name)) == [], vendor


def test_our_qwen_and_llama_write_tool_calls_as_the_vendors_do():
    sources = {path.stem: path.read_text(encoding="utf-8") for path in vendor_templates()}
    for vendor, name in {"qwen2_5": "qwen2", "qwen3": "qwen3"}.items():
        texts = [ChatTemplate(s, {}).render(TOOL_PROBE, TOOLS) for s in (sources[vendor], read_family(name))]
        assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "path",
    every(8, vendor_templates()),
    ids=lambda path: path.stem,
)
def test_ours_render_as_transformers_does(path, tokenizers_of):
    """On other conversations than those on which compile_like compares them."""
    from datetime import datetime

    tokenizer = tokenizers_of[0](path.read_text(encoding="utf-8"), SPECIALS, bos="<s>")
    assert compile_like(tokenizer, tokenizer.chat_template).tokenizer is None, "took the slow way"
    ours = ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens_map, today=datetime.now())
    for turns, tools in ((TOOL_PROBE, TOOLS), (PROBES[1][:4], ()), (PROBES[0] * 3, TOOLS)):
        for generation_prompt in (False, True):
            try:
                wanted = tokenizer.apply_chat_template(
                    list(turns),
                    tools=list(tools) or None,
                    tokenize=False,
                    add_generation_prompt=generation_prompt,
                )
            except (jinja2.TemplateError, TypeError, LookupError, ValueError):
                with pytest.raises(RowError):
                    ours.render(turns, tools, generation_prompt=generation_prompt)
            else:
                assert ours.render(turns, tools, generation_prompt=generation_prompt) == wanted


def test_a_template_that_comes_out_otherwise_goes_the_slow_way(tokenizers_of):
    source = "{% for m in messages %}{{ m.content }}<e>{% endfor %}"

    class Odd:
        special_tokens_map = {}

        def apply_chat_template(self, turns, **settings):
            return "own text: " + turns[-1]["content"]

    template = compile_like(Odd(), source)
    assert template.render([{"role": "user", "content": "q"}]) == "own text: q"


def test_template_of_the_catalogue_and_of_a_file(tokenizers_of, tmp_path):
    tokenizer = tokenizers_of[0](
        "{% for m in messages %}own {{ m.content }}</s>{% endfor %}", SPECIALS, bos="<s>"
    )
    assert Renderer(tokenizer, "answers").lay_out(CHAT).text == "own q</s>own a</s>"
    chosen = Renderer(tokenizer, "answers", "zephyr")
    assert chosen.lay_out(CHAT).text == "<|user|>\nq</s>\n<|assistant|>\na</s>\n"
    assert chosen.source == read_family("zephyr")
    path = tmp_path / "mine.jinja"
    path.write_text("\ufeff{% for m in messages %}ünd {{ m.content }}</s>{% endfor %}", encoding="utf-8")
    assert Renderer(tokenizer, "answers", str(path)).lay_out(CHAT).text == "ünd q</s>ünd a</s>"
    assert DatasetSpec(source="x").template == ""


def test_template_that_does_not_exist(tmp_path, english):
    (tmp_path / "notes.txt").write_text("words", encoding="utf-8")
    (tmp_path / "latin.jinja").write_bytes(b"\xe9\xff")
    for choice in (
        "chatmll",
        str(tmp_path / "none.jinja"),
        str(tmp_path / "notes.txt"),
        str(tmp_path / "latin.jinja"),
    ):
        with pytest.raises(StudioError) as refusal:
            read_choice(choice)
        assert choice in english(refusal.value.what) and "chatml" in english(refusal.value.why)


def test_own_templates_by_purpose(tokenizers_of):
    """Some models bring one template for chats with tools and one for chats without."""
    plain = "{% for m in messages %}plain {{ m.content }}</s>{% endfor %}"
    tooled = "{{ tools | tojson }}" + plain.replace("plain", "tooled")
    tokenizer = tokenizers_of[0](None, SPECIALS)
    tokenizer.chat_template = {"default": plain, "tool_use": tooled}
    renderer = Renderer(tokenizer, "answers")
    assert renderer.lay_out(CHAT).text == "plain q</s>plain a</s>"
    assert "tooled q" in renderer.lay_out(CHAT._replace(tools=TOOLS)).text


def test_call_ids_are_made_to_fit(tokenizers_of):
    """Mistral's templates take ids of nine characters only; the same call keeps the same id, with its result."""
    from studio.data.conversation import ToolCall

    specials = ("</s>", "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")
    renderer = Renderer(tokenizers_of[0](read_family("mistral"), specials, bos="<s>"), "answers")

    def lay_out(*ids: str) -> str:
        return renderer.lay_out(
            Conversation(
                messages=(
                    Message("user", "q"),
                    Message("assistant", "", tool_calls=tuple(ToolCall("f", {"n": 1}, one) for one in ids)),
                    *(Message("tool", f"result {n}", call_id=one) for n, one in enumerate(ids)),
                    Message("assistant", "a"),
                )
            )
        ).text

    assert '"id": "abcdef123"' in lay_out("abcdef123") and '"call_id": "abcdef123"' in lay_out("abcdef123")
    for given in (("call_1", "call_2"), ("", "")):
        text = lay_out(*given)
        made = [part[:9] for part in text.split('"id": "')[1:]]
        assert [part[:9] for part in text.split('"call_id": "')[1:]] == made and len(set(made)) == 2
        assert text == lay_out(*given)

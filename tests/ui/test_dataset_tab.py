"""The Dataset tab's handlers: what they change in the recipe, what they ask of the desk, what a reload finds."""

from __future__ import annotations

import time

import gradio as gr
import pytest

from studio.core.errors import StudioError
from studio.core.i18n import literal
from studio.core.recipe import change_recipe
from studio.ui.form import Form
from studio.ui.tabs.dataset.tab import FRESH, DatasetTab
from tests.ui.sample_report import EVIL, make_question, make_report
from tests.ui.sheet import Sheet

PATIENCE_S = 10
OTHERS = ("model", "method", "name", "seed", "adapter", "optim", "run")


@pytest.fixture
def tab(context):
    """The tab in a window of its own, with a source in the draft."""
    context.keep_draft(change_recipe(context.draft(), {"data.source": "/data/chats.csv"}))
    with Sheet() as blocks:
        form = Form(context.words, context.draft())
        form.fields(form.section(OTHERS, ["basic", "common", "advanced"]))
        with gr.Tab("Dataset") as part:
            tab = DatasetTab(context, form)
        tab.bind(part)
    tab.fns = list(blocks.fns.values())
    yield tab
    context.desk.datasets.close()


def values(tab, **changes) -> list:
    """Return the form's values with `changes` of the data's fields."""
    recipe = change_recipe(tab.context.draft(), {f"data.{name}": value for name, value in changes.items()})
    return tab.form.show(recipe)


def parts(tab, answer: list) -> dict:
    """Return what an answer changes, by the part's elem_id; the page's state as "page"."""
    names = [part.elem_id or ("page" if part is tab.page else "timer") for part in tab.parts]
    skipped = gr.skip()
    pairs = zip(names, answer[-len(names) :], strict=True)
    return {name: value for name, value in pairs if value != skipped}


def wait(tab) -> None:
    """Wait until nothing is done in the background."""
    until = time.monotonic() + PATIENCE_S
    while tab.context.desk.datasets.view().working:
        assert time.monotonic() < until
        time.sleep(0.005)


def look(tab, **changes) -> dict:
    """Look at the form's data set and wait for its report over all rows: what the page then shows."""
    first = parts(tab, tab.look(FRESH, *values(tab, **changes)))
    wait(tab)
    tab.context.keep_draft(tab.form.read(values(tab, **changes)))
    last = parts(tab, tab.tick(first["page"]))
    return first | last


def field_of(tab, answer: list, path: str):
    """Return what an answer puts into one field of the form."""
    return answer[list(tab.fields).index(path)]


def test_every_part_shows_data_as_text(tab):
    shown = look(tab)
    for name in (
        "dataset-verdict",
        "dataset-rows",
        "dataset-chat",
        "dataset-rendered",
        "dataset-mask",
        "dataset-problems",
    ):
        assert "&lt;img" in shown[name] or "&lt;script" in shown[name], name
        assert "<img" not in shown[name] and "<script" not in shown[name], name
    assert "data-rows" in shown["dataset-verdict"] and shown["dataset-example"]["choices"] == ["1", "2"]
    assert "1,200" in shown["dataset-verdict"] and 'role="slider"' in shown["dataset-lengths"]


def test_a_reload_finds_everything_again_and_an_idle_page_asks_no_more(tab):
    before = look(tab)
    again = parts(tab, tab.tick(FRESH))
    assert {name: again[name] for name in ("dataset-verdict", "dataset-lengths", "dataset-mask")} == {
        name: before[name] for name in ("dataset-verdict", "dataset-lengths", "dataset-mask")
    }
    assert again["timer"].active is False
    rest = parts(tab, tab.tick(again["page"]))
    assert set(rest) == {"timer", "dataset-progress"}


def test_a_page_that_has_not_got_its_draft_yet_does_not_look_elsewhere(tab):
    shown = look(tab)
    tab.context.keep_draft(change_recipe(tab.context.draft(), {"data.source": "/data/other.csv"}))
    again = parts(tab, tab.open(shown["page"]))
    assert tab.context.desk.datasets.view().source == "/data/other.csv"
    assert "dataset-rows" in again, "a tab that was hidden is drawn anew"


def test_enter_is_not_undone_by_a_draft_that_is_behind(tab, monkeypatch):
    """On a busy machine the tab's own opening came after Enter and looked at the first letters of the path."""
    look(tab)
    whole = tab.context.desk.datasets.view().source
    tab.bring(FRESH, *values(tab, source=whole))
    tab.context.keep_draft(change_recipe(tab.context.draft(), {"data.source": whole[:4]}))
    tab.open(FRESH)
    assert tab.context.desk.datasets.view().source == whole
    monkeypatch.setattr("studio.ui.tabs.dataset.tab.LAG_S", 0.0)
    tab.open(FRESH)
    assert tab.context.desk.datasets.view().source == whole[:4]


def test_a_role_above_a_column_changes_the_mapping(tab):
    look(tab)
    said = {"do": "role", "column": "long", "value": "output"}
    answer = tab.hear(said, FRESH)
    assert field_of(tab, answer, "data.mapping") == "instruction = instruction\noutput = long"
    assert tab.context.draft().data.mapping == {"instruction": "instruction", "output": "long"}
    taken = tab.hear({"do": "role", "column": "long", "value": ""}, FRESH)
    assert field_of(tab, taken, "data.mapping") == "instruction = instruction\noutput = "
    assert tab.context.draft().data.mapping["output"] == "", "its name must not win it the role again"


def test_a_choice_made_before_the_last_ones_answer_came_keeps_both(tab):
    look(tab)
    tab.hear({"do": "role", "column": "short", "value": "output"}, FRESH)
    tab.hear({"do": "role", "column": "long", "value": "output"}, FRESH)
    tab.hear({"do": "role", "column": "instruction", "value": ""}, FRESH)
    assert tab.context.draft().data.mapping == {"instruction": "", "output": "long"}


def test_another_format_forgets_roles_that_it_does_not_know(tab):
    look(tab)
    answer = tab.reformat(FRESH, *values(tab, format="text", mapping={"output": "long", "text": "long"}))
    assert field_of(tab, answer, "data.mapping") == "text = long"


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("data.encoding", "cp1252", ("encoding", "cp1252")),
        ("data.format", "text", ("format", "text")),
        ("data.sheet", "Sheet 2", ("sheet", "Sheet 2")),
        ("data.mapping.output", "reply", ("mapping", {"output": "reply"})),
    ],
)
def test_an_answer_goes_into_the_recipe(tab, field, value, expected):
    tab.context.desk.tools.report = make_report(format=None, needs_answer=[make_question(field, value, "b")])
    assert value in look(tab)["dataset-questions"] or field == "data.format"
    tab.hear({"do": "answer", "field": field, "value": value}, FRESH)
    assert getattr(tab.context.draft().data, expected[0]) == expected[1]


def test_a_page_cannot_set_what_is_no_field_of_the_data(tab):
    look(tab)
    before = tab.context.draft()
    for field in ("model.source", "data.", "data.nothing", EVIL):
        tab.hear({"do": "answer", "field": field, "value": "x"}, FRESH)
    assert tab.context.draft() == before


def test_the_line_moves_the_longest_length_and_the_field_moves_the_line(tab):
    shown = look(tab)
    answer = tab.hear({"do": "limit", "value": 4}, shown["page"])
    assert field_of(tab, answer, "data.max_length") == "8"
    assert tab.context.draft().data.max_length == 8
    assert "<s>" in parts(tab, answer)["dataset-mask"]
    moved = parts(tab, tab.redraw(shown["page"], *values(tab, max_length=512)))
    assert 'aria-valuenow="512"' in moved["dataset-lengths"] and ">488<" in moved["dataset-lengths"]
    assert tab.context.desk.tools.asked.count("measure") == 1, "a limit is no reason to read all rows again"


@pytest.mark.computing
def test_texts_are_learned_in_blocks_and_not_cut(tab):
    tab.context.desk.tools.report = make_report(format="text")
    shown = look(tab, max_length=8)
    assert "<s>" not in shown["dataset-mask"]


def test_another_source_forgets_the_last_ones_columns(tab):
    look(tab, mapping={"output": "long"}, encoding="cp1252")
    answer = tab.bring(
        FRESH, *values(tab, source="/data/new.csv", mapping={"output": "long"}, encoding="cp1252")
    )
    assert field_of(tab, answer, "data.mapping") == "" and field_of(tab, answer, "data.encoding") == "auto"
    assert tab.context.desk.datasets.view().source == "/data/new.csv"
    same = tab.bring(FRESH, *values(tab, source="/data/new.csv", mapping={"output": "long"}))
    assert field_of(tab, same, "data.mapping") == gr.skip()


def test_leaving_a_field_as_it_was_undoes_nothing(tab):
    look(tab)
    before = values(tab)
    tab.hear({"do": "answer", "field": "data.format", "value": "text"}, FRESH)
    assert parts(tab, tab._looker("data.system_prompt")(FRESH, *before)) == {}
    assert parts(tab, tab.bring(FRESH, *before)) == {}
    assert tab.context.desk.datasets.recipe.data.format == "text"
    tab._looker("data.system_prompt")(FRESH, *values(tab, system_prompt="Be brief."))
    assert tab.context.desk.datasets.recipe.data.system_prompt == "Be brief."


def test_a_recipe_that_was_brought_along_keeps_its_columns(tab):
    answer = tab.bring(FRESH, *values(tab, mapping={"output": "long"}))
    assert field_of(tab, answer, "data.mapping") == gr.skip()
    assert tab.context.desk.datasets.view().report["mapping"]["output"] == "long"


def test_examples_are_turned_over_and_end_at_the_last(tab):
    page = look(tab)["page"]
    page, number, *_, learned = tab.step(1, page, *values(tab))
    assert number == "2" and 'data-do="more"' in learned
    assert tab.step(1, page, *values(tab))[1] == "2"
    assert tab.pick("1", page, *values(tab))[1] == "1"
    assert tab.pick("nonsense", page, *values(tab))[1] == "1"
    more = parts(tab, tab.hear({"do": "more"}, page))
    assert more["page"]["shown"] == 4000 and "word3990" in more["dataset-mask"]


def test_nothing_is_fetched_before_the_word(tab):
    remote = values(tab, source="https://example.org/chats.jsonl")
    first = parts(tab, tab.look(FRESH, *remote))
    assert 'data-state="remote"' in first["dataset-verdict"] and "data-rows" not in first["dataset-verdict"]
    asking = parts(tab, tab.hear({"do": "size"}, first["page"]))
    assert asking["timer"].active and "data-do" not in asking["dataset-verdict"], (
        "nobody waits for the network"
    )
    wait(tab)
    asked = parts(tab, tab.tick(asking["page"]))
    assert "4.8 MiB" in asked["dataset-verdict"] and tab.context.desk.tools.asked == ["size"]
    fetching = parts(tab, tab.hear({"do": "fetch"}, asked["page"]))
    assert fetching["timer"].active


def test_what_cannot_be_read_is_a_sentence(tab):
    tab.context.desk.tools.error = StudioError(*[literal(EVIL)] * 3)
    shown = parts(tab, tab.look(FRESH, *values(tab)))
    assert "bad" in shown["dataset-verdict"] and "<img" not in shown["dataset-verdict"]
    assert "data-rows" not in shown["dataset-verdict"]


def test_an_upload_lands_in_the_workspace(tab, tmp_path):
    source = tmp_path / ".. weird name.jsonl"
    source.write_text('{"text": "x"}\n', encoding="utf-8")
    freed, *answer = tab.take_file(str(source))
    target = field_of(tab, answer, "data.source")
    assert freed is None and tab.context.draft().data.source == target
    assert target.startswith(str(tab.context.workspace.datasets)) and target.endswith(".jsonl")
    with pytest.raises(StudioError):
        tab.take_file(str(tmp_path / "model.pkl"))


def test_a_field_typed_by_half_elsewhere_is_in_nobodys_way(tab, tmp_path):
    tab.context.edit({}, {"optim.learning_rate": "1e-", "data.mapping": "prompt"})
    paths = list(tab.form.components)

    def half(**changes) -> list:
        shown = values(tab, **changes)
        shown[paths.index("optim.learning_rate")], shown[paths.index("data.mapping")] = "1e-", "prompt"
        return shown

    source = tmp_path / "dropped.jsonl"
    source.write_text('{"text": "x"}\n', encoding="utf-8")
    assert parts(tab, tab.look(FRESH, *half())) and parts(tab, tab.look_again(FRESH, *half()))
    _, *answer = tab.take_file(str(source))
    kept = field_of(tab, answer, "data.source")
    assert tab.context.desk.datasets.view().source == kept == tab.context.draft().data.source
    assert tab.context.typed() == {"optim.learning_rate": "1e-"}, "what another source makes void goes"
    tab.context.edit({}, {"data.mapping": "prompt"})
    tab.reformat(FRESH, *half(source=kept, format="chat"))
    assert parts(tab, tab._looker("data.system_prompt")(FRESH, *half(source=kept, system_prompt="Be brief.")))
    assert tab.save_mapping(*half(source=kept))
    answer = tab.bring(FRESH, *half(source="/data/next.csv"))
    assert tab.context.draft().data.source == "/data/next.csv"
    assert tab.context.typed() == {"optim.learning_rate": "1e-"}


def test_what_is_said_leaves_what_is_being_typed(tab):
    tab.look(FRESH, *values(tab, source="https://example.org/chats.jsonl"))
    tab.context.edit({"data.split": "train", "adapter.rank": 24}, {"optim.learning_rate": "1e-"})
    answer = tab.hear({"do": "size"}, FRESH)
    assert answer[: len(tab.fields)] == [gr.skip()] * len(tab.fields)
    tab.hear({"do": "limit", "value": 64}, FRESH)
    draft = tab.context.draft()
    assert (draft.data.split, draft.adapter.rank, draft.data.max_length) == ("train", 24, 64)
    assert tab.context.typed() == {"optim.learning_rate": "1e-"}


def test_no_answer_is_overtaken_by_an_older_one(tab):
    """A tick that was made before a file was named came after it once: the page showed the demo for ever."""
    drawing = [one for one in tab.fns if tab.page in one.outputs]
    assert len(drawing) > 20
    assert {(one.concurrency_id, one.concurrency_limit) for one in drawing} == {("dataset-page", 1)}


def test_the_rows_set_aside_can_be_downloaded(tab, tmp_path):
    assert not look(tab)["dataset-quarantine"]["visible"]
    tab.context.desk.tools.quarantine = tmp_path / "quarantine.jsonl"
    tab.context.desk.tools.quarantine.write_text("{}\n", encoding="utf-8")
    tab.context.desk.datasets.look(tab.form.read(values(tab)), again=True)
    shown = look(tab)
    assert shown["dataset-quarantine"]["visible"] and shown["dataset-quarantine"]["value"].endswith(".jsonl")


def test_saving_the_columns_says_where(tab):
    look(tab)
    assert "chats.csv.mapping.json" in tab.save_mapping(*values(tab))

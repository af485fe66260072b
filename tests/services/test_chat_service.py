"""Talks with base, result and checkpoints of real runs of a tiny model; tests of many questions; exports."""

from __future__ import annotations

import csv
import io
import json
import threading
import time

import pytest

from studio.core.errors import StudioError
from studio.core.events import PhaseStarted, RunPaused
from studio.core.i18n import load_catalogue, text
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe, change_recipe
from studio.data.questions import read_questions
from studio.engine.run_folder import create_run
from studio.services.desk import Desk
from studio.services.evaluation_file import render_answers
from studio.services.evaluation_result import EvaluationWish
from studio.services.exports import loading_lines
from tests.each_time import some

QUESTION = [{"role": "user", "content": "say 3"}]


@pytest.fixture(scope="module")
def shop(tmp_path_factory, tiny_models, know_machine):
    """A desk, the ids of a LoRA run and a full run of 8 steps, both with checkpoints after 4 and 8, and the recipe."""
    from studio.services.recipes import read_recipe
    from tests.conftest import chat_rows, write_jsonl
    from tests.launched import write_recipe

    folder = tmp_path_factory.mktemp("talks")
    data = write_jsonl(folder / "chats.jsonl", chat_rows(24))
    recipe = change_recipe(
        read_recipe(str(write_recipe(folder, tiny_models(), data))),
        {
            "run.save_every": 4,
            "run.keep_checkpoints": 3,
            "run.trial": False,
            "optim.max_steps": 8,
        },
    )
    desk = Desk(know_machine(folder / "workspace"))
    runs = []
    for method in ("lora", "full"):
        runs.append(desk.queue.start(change_recipe(recipe, {"adapter.method": method}), checked=True))
        assert desk.runs.wait(runs[-1]).state == "finished"
    yield desk, *runs, recipe
    desk.close()


def answer(desk: Desk, **settings: object) -> str:
    """The last words of an answer to QUESTION."""
    found = list(desk.chat.answer(QUESTION, max_new_tokens=12, **settings))
    return found[-1].words if found else ""


def compute(desk: Desk, run: str, place: str = "", side: str = "tuned", recipe=None) -> tuple[float, ...]:
    """What a model makes of some tokens, to four digits."""
    import torch

    def look() -> tuple[float, ...]:
        speaker = desk.chat._speak(run, place, recipe)
        with speaker.using(side) as model, torch.no_grad():
            logits = model(input_ids=torch.tensor([[7, 11, 13, 17]])).logits
        return tuple(round(float(one), 4) for one in logits[0, -1, :8])

    return desk.chat._engine.call(look)


def wait_until(holds) -> None:
    """Wait until `holds()`, at most a minute."""
    for _ in range(600):
        if holds():
            return
        time.sleep(0.1)
    pytest.fail("it never came")


@pytest.mark.parametrize("kind", some([1, 2], 1), ids=["lora", "full"])
def test_the_last_checkpoint_speaks_as_the_result_and_an_earlier_one_does_not(shop, kind):
    desk, run = shop[0], shop[kind]
    (choice,) = desk.chat.choices([desk.runs.read(run)])
    assert [(place.name, place.step, place.problem) for place in choice.places] == [
        ("", 8, None),
        ("step-00000008", 8, None),
        ("step-00000004", 4, None),
    ]
    said = {place.name: compute(desk, run, place.name) for place in choice.places}
    base = compute(desk, run, side="base")
    assert said[""] == said["step-00000008"] and len({said[""], said["step-00000004"], base}) == 3
    assert compute(desk, run) == said[""], "back from a checkpoint to the result"
    assert compute(desk, run, "step-00000004", side="base") == base
    assert compute(desk, "", side="base", recipe=shop[3]) == base, "the base model alone"
    assert answer(desk, side="base", recipe=shop[3]) and answer(desk, run=run, checkpoint="step-00000004")
    assert compute(desk, "", side="base", recipe=shop[3]) == base
    loaded = desk.chat.loaded()
    assert (loaded.run, loaded.checkpoint, loaded.device) == ("", "", "cpu")
    assert desk.chat.unload() == loaded.size_bytes > 0 and desk.chat.loaded() is None


def test_that_the_base_is_another_one_than_was_trained_is_told(shop):
    desk, lora, full, _ = shop
    for run in (lora, full):
        folder = desk.workspace.runs / run / "run.json"
        kept = folder.read_text(encoding="utf-8")
        answer(desk, run=run)
        assert not desk.chat.loaded().base_changed
        record = json.loads(kept)
        assert len(record["base_hash"]) == 64
        folder.write_text(json.dumps(record | {"base_hash": "0" * 64}), encoding="utf-8")
        try:
            desk.chat.unload()
            answer(desk, run=run)
            # All weights of a full run are its own: no base is under them.
            assert desk.chat.loaded().base_changed == (run == lora)
        finally:
            folder.write_text(kept, encoding="utf-8")
            desk.chat.unload()


def test_a_checkpoint_that_is_not_whole_says_why(shop, tmp_path):
    import shutil

    desk, run = shop[0], shop[1]
    folder = desk.workspace.runs / run / "checkpoints"
    shutil.copytree(folder / "step-00000004", folder / "step-00000007")
    broken = folder / "step-00000007" / "trained.safetensors"
    try:
        data = bytearray(broken.read_bytes())
        data[-1] ^= 1
        broken.write_bytes(data)
        with pytest.raises(StudioError) as refused:
            answer(desk, run=run, checkpoint="step-00000007")
        assert refused.value.what.id == "chat.place" and refused.value.why.id == "checkpoint.file_changed"
        broken.write_bytes(data[:-5])
        (choice,) = desk.chat.choices([desk.runs.read(run)])
        problems = {place.name: place.problem for place in choice.places}
        assert problems["step-00000007"].id == "checkpoint.file_changed"
        assert problems["step-00000004"] is None
        broken.unlink()
        with pytest.raises(StudioError):
            answer(desk, run=run, checkpoint="step-00000007")
    finally:
        shutil.rmtree(folder / "step-00000007")
    for name in ("step-99999999", "../../other", "step-00000004/../step-00000004", "adapter"):
        with pytest.raises(StudioError) as refused:
            answer(desk, run=run, checkpoint=name)
        assert refused.value.why.id == "chat.place.gone"


def test_chance_follows_the_seed_and_the_model_says_nothing_to_sampling(shop, monkeypatch):
    desk, run = shop[0], shop[1]
    drawn = [answer(desk, run=run, temperature=1.5, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    one = answer(desk, run=run, temperature=1.5, seed=2, top_k=1)
    assert one == answer(desk, run=run), "of one word there is no choice"
    assert answer(desk, run=run, repetition_penalty=2.0) != answer(desk, run=run)
    assert desk.chat._speaker.tuned.generation_config.do_sample is not True
    seen: list[list[dict]] = []
    prompts = desk.chat._speaker._prompts
    begin = prompts.begin
    monkeypatch.setattr(
        prompts, "begin", lambda ask, limit: seen.append(list(ask.messages)) or begin(ask, limit)
    )
    answer(desk, run=run, system=" Be brief. ")
    assert seen == [[{"role": "system", "content": "Be brief."}, *QUESTION]]


def test_an_answer_ends_when_told_and_says_how_fast_it_was(shop):
    desk, run = shop[0], shop[1]
    stop = threading.Event()
    answers = desk.chat.answer(QUESTION, run=run, max_new_tokens=200, should_stop=stop.is_set)
    first = next(answers)
    assert first.first_s > 0 and first.tokens >= 1
    stop.set()
    rest = list(answers)
    assert (rest[-1].tokens if rest else first.tokens) < 200
    growing = list(desk.chat.answer(QUESTION, run=run, max_new_tokens=8))
    assert growing[-1].took_s >= growing[-1].first_s and (growing[-1].tokens < 2) == (
        growing[-1].tokens_per_s == 0
    )


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "failure."),
        (
            RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
            ),
            "chat.memory",
        ),
        (RuntimeError("what nobody knows"), "failure.unknown"),
    ],
)
def test_what_fails_in_mid_answer_is_told_and_the_next_one_is_answered(
    shop, monkeypatch, capsys, error, said
):
    desk, run = shop[0], shop[1]
    wanted = answer(desk, run=run)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(desk.chat._speaker._answerers["tuned"]._generator, "_step", fail)
    with pytest.raises(StudioError) as refused:
        answer(desk, run=run)
    assert refused.value.what.id.startswith(said) and refused.value.exit_code == 1
    assert desk.chat.loaded() is None and not desk.chat._asked
    assert ("Traceback" in capsys.readouterr().err) == (said != "chat.memory")
    assert answer(desk, run=run) == wanted


def test_chat_waits_for_a_run_and_is_free_while_that_is_paused(shop):
    desk, _, _, recipe = shop
    assert desk.chat.state().ok
    run = desk.queue.start(
        change_recipe(recipe, {"optim.max_steps": 100_000, "run.save_every": 0}), checked=True
    )
    try:
        assert not desk.chat.state().ok
        for act in (lambda: answer(desk, run=shop[1]), lambda: desk.exports.start(shop[1], "adapter")):
            with pytest.raises(StudioError) as refused:
                act()
            assert refused.value.what.id == "desk.training"
        desk.runs.pause(run)
        wait_until(lambda: desk.chat.state().ok)
        assert answer(desk, run=shop[1])
        desk.runs.unpause(run)
        assert desk.chat.loaded() is None and not desk.chat.state().ok
    finally:
        desk.runs.stop(run)
        desk.runs.wait(run)
    assert desk.runs.read(run).state == "stopped"
    (choice,) = desk.chat.choices([desk.runs.read(run)])
    assert "" not in [place.name for place in choice.places], "no result, but the last checkpoint"
    place = desk.chat.find_place(run)
    assert place == choice.places[0].name and answer(desk, run=run, checkpoint=place)
    assert desk.chat.find_place(shop[1]) == "", "the result, although there are checkpoints"


def test_a_paused_run_that_loads_again_after_a_restart_leaves_chat_no_room(workspace, tmp_path):
    desk = Desk(workspace)
    folder = create_run(
        workspace.runs, Recipe(model=ModelChoice(source="demo"), data=DatasetSpec(source="demo"))
    )
    log = desk.runs.logs.open(folder.run)
    log.append(RunPaused(step=3))  # by the process before
    running = desk.runs
    running._active = folder.run
    running._pause.set()
    running._keep(log, PhaseStarted(phase="load", step=3))
    assert running.was_paused(folder.run) and not desk.chat.state().ok
    with pytest.raises(StudioError):
        next(desk.chat.answer(QUESTION, run=folder.run))
    running._keep(log, RunPaused(step=3))
    assert desk.chat.state().ok
    running._active = None
    desk.close()


def test_the_last_talk_of_a_run_is_kept_and_goes_with_the_run(shop):
    desk, run = shop[0], shop[1]
    turn = {"role": "assistant", "content": "<b>", "tokens": 3, "first_s": 0.1, "evil": "x"}
    desk.chat.files.keep(run, {"base": [], "tuned": [{"role": "user", "content": "hi"}, turn], "system": "s"})
    kept = desk.chat.files.read(run)
    assert kept["system"] == "s" and kept["tuned"][1] == {k: v for k, v in turn.items() if k != "evil"}
    stray = desk.workspace.root / "talks" / "gone-0000.json"
    stray.write_text("{}", encoding="utf-8")
    desk.chat.files.keep("", {"base": [], "tuned": []})
    assert not stray.exists() and desk.chat.files.read(run) == kept
    for damage in ("", "[]", '{"base": [{"role": "system", "content": "x"}], "tuned": []}'):
        (desk.workspace.root / "talks" / f"{run}.json").write_text(damage, encoding="utf-8")
        assert desk.chat.files.read(run) == {"system": "", "base": [], "tuned": []}
    with pytest.raises(StudioError):
        desk.chat.files.keep("../evil", {"base": [], "tuned": []})


# Files of questions -----------------------------------------------------------------------------------------


def begin(desk, run, path, **wish):
    """A test of a run's result beside its base with the questions of a file."""
    contenders = desk.evaluations.contenders(run, ["base"])
    wanted = EvaluationWish(**wish)
    return desk.evaluations.start(lambda: read_questions(DatasetSpec(source=str(path))), contenders, wanted)


def test_a_test_tells_who_is_right_and_how_sure(shop, tmp_path, jsonl):
    desk, run = shop[0], shop[1]
    rows = [{"prompt": words, "expected": "@SUM(1)"} for words in ("say 9", "say 3", "=cmd|' /C calc'!A0")]
    path = jsonl(tmp_path / "q.jsonl", rows)
    before = begin(desk, run, path, max_new_tokens=12).result(60)
    given = {side.contender.name: side.answers[2].words for side in before.sides}
    scores = {side.contender.name: side.scores for side in before.sides}
    assert scores["tuned"]["exact"].value == 0 and given["base"] != given["tuned"]
    rows[1]["expected"] = given["tuned"]
    jsonl(path, rows)
    job = begin(desk, run, path, max_new_tokens=12)
    with pytest.raises(StudioError):
        begin(desk, run, path)
    found = job.result(60)
    (against,) = found.comparisons
    assert found.whole and against.won["exact"] == (2,) and against.lost["exact"] == ()
    scores = {side.contender.name: side.scores for side in found.sides}
    assert scores["tuned"]["exact"].value == pytest.approx(1 / 3) and scores["base"]["exact"].value == 0
    assert scores["tuned"]["exact"].rows == 3 and scores["tuned"]["perplexity"].value > 1
    written = render_answers(found, load_catalogue("en"), ".csv").decode("utf-8-sig")
    lines = list(csv.DictReader(io.StringIO(written)))
    assert len(lines) == 3 and lines[1]["tuned.exact"] == "1" and lines[1]["base.exact"] == "0"
    assert lines[2]["prompt"].startswith("'=cmd") and lines[2]["expected"] == "'@SUM(1)"
    assert not any(cell[:1] in "=+@" for line in lines for cell in line.values() if cell)


def test_the_rows_that_a_run_held_out_are_questions(shop, tmp_path):
    desk, run = shop[0], shop[1]
    with pytest.raises(StudioError) as refused:
        desk.evaluations.held_out(run)
    assert refused.value.what.id == "eval.no_held_out"
    held = desk.queue.start(change_recipe(shop[3], {"data.validation_share": 0.25}), checked=True)
    assert desk.runs.wait(held).state == "finished"
    found = desk.evaluations.held_out(held)
    assert 4 <= len(found.asked) <= 8 and all(one.prompt.startswith("say ") for one in found.asked)
    assert all(one.expected == f"it is {int(one.prompt.split()[1]) * 7 % 10}" for one in found.asked)
    contenders = desk.evaluations.contenders(held, ["base"])
    result = desk.evaluations.start(lambda: found, contenders, EvaluationWish()).result(60)
    scores = desk.runs.read(held).scores
    assert scores[0].rows == len(found.asked) and scores[0].metric == "exact"
    for side, value in zip(result.sides, (scores[0].value, scores[0].base), strict=True):
        assert side.scores["exact"].value == value, "what the run itself said at its end"
    assert desk.library.delete(held) > 0


def test_what_waited_for_the_model_loads_none_after_it_made_room(shop, tmp_path, monkeypatch):
    from studio.ui.tabs.chat.evaluation_card import evaluation_card

    desk, run = shop[0], shop[1]
    path = tmp_path / "one.txt"
    path.write_text("say 3\n", encoding="utf-8")
    monkeypatch.setattr(desk.chat, "_speak", lambda *_: pytest.fail("loaded"))
    said: list[object] = []
    with desk.chat._hold:  # an answer is being given
        asking = threading.Thread(target=lambda: said.extend(desk.chat.answer(QUESTION, run=run)))
        asking.start()
        wait_until(lambda: desk.chat._engine._jobs.empty() and desk.chat._asked)
        job = begin(desk, run, path, system="another")
        wait_until(lambda: desk.chat._asked.count(run) == 2)
        desk.chat._turn += 1  # as unload() does, which then waits for the model too
    asking.join(10)
    found = job.result(10)
    assert not said and not found.whole and not found.sides[0].answers
    say = load_catalogue("en").say
    assert "one.txt" in evaluation_card(found, lambda id, **values: say(text(id, **values)))


def test_a_stopped_test_keeps_what_it_has(shop, tmp_path):
    desk, run = shop[0], shop[1]
    path = tmp_path / "many.txt"
    path.write_text("".join(f"say {i}\n" for i in range(200)), encoding="utf-8")
    job = begin(desk, run, path, max_new_tokens=64)
    job.stop()
    found = job.result(60)
    assert not found.whole and len(found.questions.asked) == 200 and not job.error


# Exports ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", some(["", "step-00000004"], ""))
@pytest.mark.parametrize("target", some(["adapter", "merged"], "merged"))
def test_an_export_is_checked_listed_loaded_by_its_own_lines_and_deleted(shop, target, place):
    desk, run = shop[0], shop[1]
    found = desk.exports.estimate(run, target, place)
    assert found.problem is None and found.size_bytes > 0 and found.memory_bytes > 0
    job = desk.exports.start(run, target, place)
    done = job.result(60)
    assert job.phase.id == "export.phase.check", "the last thing that is done"
    (item,) = [one for one in desk.exports.items() if one.target == target]
    state = f"{run}-{place}" if place else run
    assert (item.run, item.path, item.name) == (state, done.path, f"{state}-{target}")
    assert [path.name for path in desk.workspace.exports.iterdir()] == [item.name]
    assert any(name.endswith(".safetensors") for name in item.files) and item.size_bytes == done.size_bytes
    told: dict[str, object] = {}
    exec("\n".join(loading_lines(item)), told)  # noqa: S102 - our own lines
    import torch

    ids = told["tokenizer"]("say 3", return_tensors="pt")["input_ids"]
    speaker = desk.chat._engine.call(lambda: desk.chat._speak(run, place, None))
    with torch.no_grad():
        ours, theirs = speaker.tuned(input_ids=ids).logits, told["model"](input_ids=ids).logits
    assert float((ours - theirs.float()).abs().max()) < (1e-4 if target == "adapter" else 0.1)
    assert desk.exports.delete(item.name) == item.size_bytes and not item.path.exists()
    for name in (item.name, "../runs", f"../runs/{run}", ".", ""):
        with pytest.raises(StudioError):
            desk.exports.delete(name)
        with pytest.raises(StudioError):
            desk.exports.open_folder(name)


def test_an_export_that_differs_from_what_was_trained_is_none(shop, monkeypatch):
    from studio.engine.exporters import adapter

    desk, run = shop[0], shop[1]

    def copy_wrongly(source, target, **_: object) -> None:
        import shutil

        from safetensors.torch import load_file, save_file

        shutil.copytree(source, target, dirs_exist_ok=True)
        weights = load_file(target / "adapter_model.safetensors")
        save_file(
            {name: tensor * 3 for name, tensor in weights.items()}, target / "adapter_model.safetensors"
        )

    monkeypatch.setattr(adapter, "_copy", copy_wrongly)
    job = desk.exports.start(run, "adapter")
    with pytest.raises(StudioError) as refused:
        job.result(60)
    assert refused.value.what.id == "artifact.differs" and desk.exports.items() == ()


def test_a_merged_model_computes_exactly_what_was_stored(shop, monkeypatch):
    from studio.engine import artifact

    desk, run = shop[0], shop[1]
    off: list[float] = []

    def compare(model, tokenizer, expected, dtype, read=None) -> None:
        found = artifact.fingerprint(model, expected.ids[0].tolist(), read=read)
        off.append(float((found.logits - expected.logits).abs().max()))
        assert found.weights == expected.weights

    monkeypatch.setattr(artifact, "verify_artifact", compare)
    desk.exports.write(run, "merged")
    assert off == [0.0], "rounded weights, and nothing else, are what makes them differ from the fp32 ones"
    desk.exports.delete(f"{run}-merged")


def test_an_export_can_be_stopped_and_leaves_nothing(shop):
    desk, run = shop[0], shop[1]
    job = desk.exports.start(run, "merged")
    job.stop()
    with pytest.raises(Exception) as ended:
        job.result(60)
    assert type(ended.value).__name__ == "ExportStopped"
    assert list(desk.workspace.exports.iterdir()) == []
    assert desk.exports.estimate(shop[2], "adapter").problem is not None, "a full run has no adapter"

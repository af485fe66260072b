"""Which models there are and which fit, by the planner's own prediction; and what a run will need before it starts."""

import dataclasses
import importlib
import json
import re
import shutil
import sys
import time
from types import SimpleNamespace

import pytest

from studio.core.codec import to_json
from studio.core.errors import StudioError
from studio.core.i18n import literal, load_catalogue
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe, change_recipe
from studio.core.run_record import RunRecord
from studio.engine.run_folder import create_run
from studio.hub.access_token import NO_MIRROR
from studio.hub.search import HubModel
from studio.models.catalog import DEMO_MODEL
from studio.models.recommended_models import PICKS_FILE, SIZES, outline_sizes, read_picks
from studio.planning.memory_estimate import predict
from studio.planning.run_plan import choose_calibration, plan
from studio.services import estimate as estimate_module
from studio.services import model_library as module
from studio.services.dataset_report import Counted
from studio.services.dataset_session import Look
from studio.services.estimate import count_steps, write_command
from studio.services.model_fit import JUDGED_TOKENS, count_active, judge_method, judge_model, judged_recipe
from studio.services.model_library import ModelLibrary, read_licence
from tests.machine.facts import make_decoder, make_gpu, make_machine

RTX_3060 = make_machine(make_gpu(12, (8, 6), "RTX 3060"))
LAPTOP = make_machine()
ASSETS = PICKS_FILE.parent
SAYS = {language: load_catalogue(language) for language in ("en", "zh-CN")}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "num_hidden_layers": 2,
}


@pytest.fixture
def desk(workspace, monkeypatch, tmp_path):
    """What ModelLibrary asks of the desk, for an RTX 3060, with empty caches of models."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "modelscope"))
    desk = SimpleNamespace(known=RTX_3060, problems=(), checks=0, seen=Look())
    desk.machine = SimpleNamespace(
        facts=lambda: desk.known,
        now=lambda: desk.known,
        add_experience=lambda machine, recipe: machine,
        mirror=lambda: NO_MIRROR,
    )
    desk.counted = None
    desk.datasets = SimpleNamespace(view=lambda: desk.seen, recipe=None)
    desk.datasets.count = lambda recipe: desk.counted if recipe.data.source == desk.seen.source else None

    def check(recipe):
        desk.checks += 1
        return desk.problems

    desk.check = check
    return desk


@pytest.fixture
def fits(desk, workspace):
    return ModelLibrary(workspace, desk.machine, desk.datasets, desk)


def demo(**changes) -> Recipe:
    data = DatasetSpec(source="demo", max_length=512, validation_share=0.0)
    return change_recipe(Recipe(model=ModelChoice(source="demo"), data=data), changes)


# Whether a model fits ------------------------------------------------------------------------------------------------


def test_advice_names_the_largest_usual_sizes(fits, desk):
    assert SAYS["en"].say(fits.advice()) == "RTX 3060 12 GB: up to 8B with QLoRA, up to 3B with 16-bit LoRA."
    desk.known = make_machine(make_gpu(2.1, (8, 6), "MX"))
    assert SAYS["en"].say(fits.advice()) == "MX 2 GB: up to 0.5B with 16-bit LoRA."
    desk.known = make_machine(make_gpu(1.7, (8, 6), "MX"))
    assert fits.advice().id == "fit.advice.qlora"
    desk.known = make_machine(make_gpu(1, (8, 6), "MX"))
    assert fits.advice().id == "fit.advice.none"
    desk.known = make_machine(make_gpu(12), bitsandbytes_error="No binary")
    assert SAYS["en"].say(fits.advice()) == "RTX 4090 12 GB: up to 3B with 16-bit LoRA."
    desk.known = LAPTOP
    assert fits.advice().id == "fit.advice.processor" and "8 CPU cores" in SAYS["en"].say(fits.advice())


def test_numbers_are_the_planners_own():
    for name, facts in outline_sizes().items():
        for method in ("lora", "qlora", "int8"):
            one = judge_method(RTX_3060, facts, method)
            recipe = judged_recipe(one.quantization)
            assert (recipe.data.max_length, recipe.optim.micro_batch) == (JUDGED_TOKENS, 1)
            calibration = choose_calibration(RTX_3060, RTX_3060.gpus[0])
            parts = predict(plan(RTX_3060, recipe, facts), facts, recipe, calibration=calibration)
            assert one.needed_bytes == sum(parts.values()), name
            assert (one.verdict == "no") == (one.needed_bytes > int(0.9 * 12 * 2**30)), name


def test_best_method_fits_comfortably_before_tightly():
    sizes = outline_sizes()
    chosen = {name: judge_model(RTX_3060, facts) for name, facts in sizes.items()}
    assert [fit.method for fit in chosen.values()][:4] == ["lora", "lora", "lora", "qlora"]
    assert [fit.verdict for fit in chosen.values()] == ["fits"] * 4 + ["no"] * 3
    assert {one.method: one.verdict for one in chosen["8B"].methods} == {
        "lora": "no",
        "qlora": "fits",
        "int8": "tight",
    }
    for fit in chosen.values():
        for words in SAYS.values():
            assert f"{fit.needed_bytes / 2**30:.1f}" in words.say(fit.reason)


def test_methods_that_this_machine_lacks_are_not_offered():
    bare = make_machine(make_gpu(24), bitsandbytes_error="No binary")
    assert [one.method for one in judge_model(bare, make_decoder()).methods] == ["lora"]
    stored = dataclasses.replace(make_decoder(), quantization="nf4", weight_bytes=5_700_000_000)
    (only,) = judge_model(RTX_3060, stored).methods
    assert (only.method, only.quantization) == ("qlora", "none"), "what is stored in 4 bits needs no setting"


def test_processor_is_judged_by_its_free_memory_and_told_to_be_slow():
    fit = judge_model(make_machine(ram_available_bytes=20 * 2**30), outline_sizes()["3B"])
    assert (fit.verdict, fit.reason.id, fit.has_bytes) == ("fits", "fit.slow", int(0.9 * 20 * 2**30))
    small = judge_model(LAPTOP, outline_sizes()["0.5B"])
    assert small.reason.id == "fit.fits" and "32 bits" in SAYS["en"].say(small.reason)


def test_shape_that_is_not_known_is_not_judged():
    facts = dataclasses.replace(make_decoder(), hidden_size=0, layers=0, linears={})
    assert judge_model(RTX_3060, facts).verdict == "unknown"


# Where models are ----------------------------------------------------------------------------------------------------


@pytest.fixture
def shelf(tmp_path):
    """A folder of models, good and bad ones."""
    root = tmp_path / "shelf"
    shutil.copytree(DEMO_MODEL, root / "owner" / "good")
    (root / "owner" / "good" / "README.md").write_text("---\nlicense: mit\n---\nHello\n", encoding="utf-8")
    for name, file in (("pickles", "pytorch_model.bin"), ("unfinished", "tokenizer.json")):
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        (root / name / file).write_bytes(b"x")
    (root / "ollama").mkdir()
    (root / "ollama" / "model.gguf").write_bytes(b"GGUF")
    (root / "photos").mkdir()
    return root


def test_every_model_of_a_folder_is_found_with_what_is_wrong_with_it(fits, shelf):
    found = {model.name: model for model in fits.models([str(shelf), str(shelf / "not there")])}
    assert set(found) == {"demo", "owner/good", "pickles", "unfinished", "model"}
    good = found["owner/good"]
    assert (good.trainable, good.fit.verdict, good.licence) == (True, "fits", "mit")
    assert good.source == str(shelf / "owner" / "good") and good.weight_bytes > 0
    said = {name: SAYS["en"].say(model.problem) for name, model in found.items() if not model.trainable}
    assert "any program" in said["pickles"] and "no weights" in said["unfinished"] and "GGUF" in said["model"]
    assert found["demo"].here and found["demo"].fit.verdict == "fits"


def test_models_appear_one_by_one_and_are_read_once(fits, shelf, monkeypatch):
    read = []
    real = module.inspect_model
    monkeypatch.setattr(module, "inspect_model", lambda source: read.append(source) or real(source))
    assert [len(found) for found in fits.scan([str(shelf)])] == [1, 2, 3, 4, 5]
    assert len(read) == 5
    fits.models([str(shelf)])
    assert len(read) == 5
    (shelf / "pickles" / "model.safetensors").write_bytes(b"no header")
    found = {model.name: model for model in fits.models([str(shelf)])}
    assert len(read) == 6 and "damaged" in SAYS["en"].say(found["pickles"].problem)


def test_folders_of_the_settings_are_looked_into(fits, shelf, workspace):
    workspace.settings.write_text(json.dumps({"model_folders": [str(shelf)]}), encoding="utf-8")
    assert "owner/good" in {model.name for model in fits.models()}


def test_downloads_that_are_not_whole_are_told(fits, tmp_path):
    commit = "0" * 40

    def keep(name: str) -> object:
        repository = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text(commit, encoding="utf-8")
        return repository / "snapshots" / commit

    shutil.copytree(DEMO_MODEL, keep("good/whole"))
    half = keep("good/half")
    half.mkdir(parents=True)
    (half / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    gguf = keep("some/gguf")
    gguf.mkdir(parents=True)
    (gguf / "m.gguf").write_bytes(b"GGUF")
    found = {model.source: model for model in fits.models([])}
    assert found["good/whole"].trainable and found["good/whole"].origin == "cache"
    assert found["good/half"].problem.id == "fit.incomplete"
    assert "m.gguf is damaged" in SAYS["en"].say(found[str(gguf / "m.gguf")].problem)


def test_model_is_judged_anew_when_the_machine_is_another(fits, desk):
    before = fits.find("Qwen/Qwen3-8B").fit
    desk.known = make_machine(make_gpu(80))
    after = fits.find("Qwen/Qwen3-8B").fit
    assert (before.method, after.method) == ("qlora", "lora")


def test_licence_is_read_from_the_cards_head_alone(tmp_path):
    (tmp_path / "README.md").write_text("license: wrong\n---\nlicense: 'apache-2.0'\n---\n", encoding="utf-8")
    assert read_licence(tmp_path) == "apache-2.0"
    assert read_licence(tmp_path / "none") == ""


# Picks and the hub ---------------------------------------------------------------------------------------------------


def test_picks_fit_and_are_not_here(fits, desk, monkeypatch):
    picks = fits.picks()
    lines = {pick.source: pick.line for pick in read_picks()}
    assert picks[0].source == "Qwen/Qwen3.5-9B" and len(picks) == 6
    assert len({lines[pick.source] for pick in picks}) == 6, "one of each line before a second of one"
    assert all(pick.fit.verdict in ("fits", "tight") and not pick.here and pick.licence for pick in picks)
    sizes = [pick.facts.parameters for pick in picks]
    assert sizes == sorted(sizes, reverse=True)
    desk.known = LAPTOP
    assert {pick.source.partition("/")[2] for pick in fits.picks()} == {
        "Qwen3.5-0.8B", "Qwen3-0.6B", "SmolLM2-135M-Instruct"
    }  # fmt: skip
    here = module.FoundModel(source="Qwen/Qwen3-0.6B", name="x", origin="cache")
    monkeypatch.setattr(fits, "models", lambda: (here,))
    assert "Qwen/Qwen3-0.6B" not in {pick.source for pick in fits.picks()}


def test_picks_have_the_published_sizes():
    published = {"SmolLM2-135M-Instruct": 134.5e6, "Qwen3-0.6B": 596e6, "SmolLM3-3B": 3.08e9,
                 "Phi-4-mini-instruct": 3.84e9, "Qwen3-8B": 8.19e9, "Ministral-3-8B-Instruct-2512-BF16": 8.918e9,
                 "phi-4": 14.66e9, "gpt-oss-20b": 20.9e9, "GLM-4.7-Flash": 29.9e9}  # fmt: skip
    counted = {pick.source.partition("/")[2]: pick.facts.parameters for pick in read_picks()}
    assert {name: counted[name] for name in published} == pytest.approx(published, rel=0.005)
    for name, count in counted.items():
        said = re.search(r"-(\d+(?:\.\d+)?)B(?:-|$)", name)
        assert said is None or count == pytest.approx(float(said[1]) * 1e9, rel=0.3), name
    assert all(pick.facts.trainable.ok for pick in read_picks())
    assert len({pick.source for pick in read_picks()}) == len(read_picks())


def test_experts_tell_how_much_works_on_a_token():
    active = {pick.source.partition("/")[2]: count_active(pick.facts) for pick in read_picks()}
    assert active["Qwen3-8B"] == outline_sizes_of("Qwen3-8B").parameters
    said = {
        "gpt-oss-20b": 3.6e9,
        "Qwen3.5-35B-A3B": 3.5e9,
        "gemma-4-26B-A4B-it": 3.8e9,
        "GLM-4.7-Flash": 3.6e9,
    }
    assert {name: active[name] for name in said} == pytest.approx(said, rel=0.25)


def outline_sizes_of(name):
    return next(pick.facts for pick in read_picks() if pick.source.endswith(name))


@pytest.mark.computing
def test_the_file_of_models_is_what_their_code_builds():
    sys.path.insert(0, str(ASSETS))
    try:
        make_models = importlib.import_module("make_models")
    finally:
        sys.path.remove(str(ASSETS))
    entries = json.loads(PICKS_FILE.read_text(encoding="utf-8"))
    assert [entry["facts"]["source"] for entry in entries] == [model[0] for model in make_models.MODELS]
    for entry, (source, line, licence, family, settings) in zip(entries, make_models.MODELS, strict=True):
        facts = make_models.build_facts(source, family, settings)
        assert entry["facts"] == json.loads(json.dumps(facts)), source
        assert (entry["line"], entry["licence"]) == (line, licence)


def test_what_the_hub_said_is_known_to_the_run(fits, monkeypatch):
    config = {**SIZES["32B"], "num_hidden_layers": 2}
    said = HubModel(source="a/b", config=config, safetensors=True, licence="mit", gated=True)
    monkeypatch.setattr(module, "search_hub", lambda words, endpoint: (said, HubModel(source="../evil")))
    (found,) = fits.search("b")
    assert found.fit.verdict == "fits" and found.hub.gated
    assert fits.find("a/b") is found
    estimate = fits.judge(demo(**{"model.source": "a/b"}))
    assert estimate.downloads and estimate.download_bytes == found.weight_bytes > 10**9
    assert fits.find("never/heard").facts is None


@pytest.mark.parametrize(
    "config",
    [
        {"hidden_size": 1e400, "num_hidden_layers": 2, "vocab_size": 9},
        {"model_type": "llama", "num_hidden_layers": 10**12, "sliding_window": 5, "layer_types": 3},
        {"architectures": 7, "text_config": {"hidden_size": "x"}},
        {"model_type": ["a"], "architectures": [None]},
        {**SIZES["0.5B"], "vocab_size": 0},
        {**SIZES["0.5B"], "sliding_window": 9, "layer_types": [1, 2]},
    ],
)
def test_config_that_makes_no_sense_is_no_crash(fits, config, monkeypatch):
    said = HubModel(source="a/b", config=config, safetensors=True)
    monkeypatch.setattr(module, "fetch_facts", lambda source, endpoint: said)
    assert fits.ask("a/b").fit.verdict == "unknown"


def test_only_an_id_is_asked_for(fits, monkeypatch):
    monkeypatch.setattr(module, "fetch_facts", lambda *_: pytest.fail("asked"))
    with pytest.raises(StudioError):
        fits.ask("--help me")


def test_pickles_at_the_hub_are_not_trainable(fits, monkeypatch):
    said = HubModel(source="a/b", config=CONFIG)
    monkeypatch.setattr(module, "fetch_facts", lambda source, endpoint: said)
    assert fits.ask("a/b").problem.id == "fit.no_safetensors"


# What a run will need ------------------------------------------------------------------------------------------------


def test_estimate_is_the_plans_own_and_counts_what_is_known(fits, desk):
    recipe = demo(**{"run.keep_checkpoints": 3})
    estimate = fits.judge(recipe)
    assert (estimate.checks, estimate.rows, estimate.pace, estimate.total_s) == (None, 0, None, None)
    assert estimate.needed_bytes == sum(estimate.parts.values()) > 0
    assert (estimate.verdict, estimate.on_gpu, estimate.has_bytes) == ("fits", True, 12 * 2**30)
    assert estimate.budget_bytes == int(0.9 * 12 * 2**30)
    assert json.loads(estimate.recipe_json)["model"]["source"] == "demo"
    assert 0 < estimate.disk_bytes < 50 * 2**20 and not estimate.downloads
    known = fits.examine(recipe)
    assert (known.checks, known.rows, known.steps) == ((), 400, 150)
    assert fits.judge(recipe).rows == 400


def test_problems_are_looked_for_once_a_recipe(fits, desk):
    fits.examine(demo())
    fits.examine(demo())
    assert desk.checks == 1
    assert fits.judge(demo(seed=1)).checks is None
    fits.examine(demo(), fresh=True)
    assert desk.checks == 2


def test_model_that_cannot_be_read_is_told_not_raised(fits):
    estimate = fits.judge(demo(**{"model.source": "/no/such/folder"}))
    assert estimate.model is None and estimate.model_error.what.id == "model.missing"
    assert estimate.verdict == "unknown"
    assert fits.judge(demo(**{"model.source": " "})).model_error is None


@pytest.mark.parametrize(
    "path, value",
    [("optim.batch_size", 0), ("adapter.rank", -1), ("data.max_length", 0), ("optim.epochs", -3.0)],
)
def test_numbers_out_of_range_are_no_crash(fits, path, value):
    fits.judge(demo(**{path: value}))


def test_rows_and_tokens_come_from_the_data_sets_own_report(fits, desk):
    recipe = demo(**{"data.fill": True, "optim.epochs": 2.0, "optim.batch_size": 4})
    desk.seen = Look(state="done", source="demo", whole=True, report={"rows_used": 1000})
    desk.counted = Counted(rows_read=1000, rows_used=1000, rows_refused=0, filtered={}, tokens=204_800)
    desk.datasets.recipe = recipe
    estimate = fits.judge(recipe)
    assert (estimate.rows, estimate.tokens, estimate.steps) == (1000, 204_800, 200)
    other = fits.judge(change_recipe(recipe, {"data.source": "other.jsonl"}))
    assert (other.rows, other.tokens, other.steps, other.look.state) == (0, 0, 0, "none")


def test_steps_of_packed_rows_follow_their_tokens():
    packed = demo(**{"data.fill": True, "optim.epochs": 1.0, "optim.batch_size": 1})
    assert count_steps(packed, 10, 5120) == 10
    assert count_steps(packed, 10, 0) == 0
    assert count_steps(change_recipe(packed, {"optim.max_steps": 7}), 10, 5120) == 7


def test_planner_is_asked_once_for_what_it_decides(fits, monkeypatch):
    large = dataclasses.replace(make_decoder(80), source="big")
    found = module.FoundModel(source="big", name="big", origin="folder", facts=large)
    monkeypatch.setattr(fits._estimates, "_find", lambda source, revision: found)
    planned = []
    real = estimate_module.plan
    monkeypatch.setattr(estimate_module, "plan", lambda *facts: planned.append(1) or real(*facts))
    recipe = demo(**{"model.source": "big", "data.max_length": 8192})
    began_s = time.thread_time()
    first = fits.judge(recipe)
    assert time.thread_time() - began_s < 1.0, "it is asked while one types"
    assert fits.judge(change_recipe(recipe, {"name": "x", "seed": 3})).parts == first.parts
    assert len(planned) == 1
    assert fits.judge(change_recipe(recipe, {"data.max_length": 512})).parts != first.parts
    assert len(planned) == 2


# How fast it will be -------------------------------------------------------------------------------------------------


def write_run(
    workspace, recipe: Recipe, *, gpu: str = "RTX 3060", steps: int = 20, step_s: float = 0.5, speed=1000.0
):
    """A finished run whose steps took `step_s`."""
    folder = create_run(workspace.runs, recipe)
    record = RunRecord(run=folder.run, name="x", state="finished", created_s=time.time(), gpu=gpu)
    (folder.path / "run.json").write_text(json.dumps(to_json(record)), encoding="utf-8")
    lines = [
        {"kind": "step_logged", "time_s": 100 + i * step_s, "tokens_per_s": speed, "step": i}
        for i in range(steps)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "step_logged", "ti'
    folder.events.write_text(text, encoding="utf-8")
    return folder


def test_time_follows_an_earlier_run_of_the_same_kind(fits, workspace, desk):
    write_run(workspace, demo(), gpu="another card", step_s=9)
    write_run(workspace, demo(**{"model.quantization": "nf4"}), step_s=9)
    same = write_run(workspace, demo(seed=7))
    estimate = fits.examine(demo())
    assert (estimate.pace.run, estimate.pace.same_steps, estimate.step_s) == (same.run, True, 0.5)
    assert estimate.total_s == pytest.approx(150 * 0.5)
    assert estimate.has_finished_run and fits.judge(demo(name="another name")).has_finished_run
    for other in ({"seed": 8}, {"optim.max_steps": 5}, {"data.source": "other.csv"}):
        assert not fits.judge(demo(**other)).has_finished_run, "only a run of this very draft has settled it"


def test_time_of_other_batches_follows_their_tokens(fits, workspace, desk):
    write_run(workspace, demo(), speed=2000.0)
    recipe = demo(**{"optim.batch_size": 16})
    assert fits.judge(recipe).total_s is None, "without tokens nothing is told"
    desk.seen = Look(state="done", source="demo", whole=True, report={"rows_used": 400})
    desk.counted = Counted(rows_read=400, rows_used=400, rows_refused=0, filtered={}, tokens=40_000)
    desk.datasets.recipe = recipe
    estimate = fits.judge(recipe)
    assert estimate.step_s == pytest.approx(16 * 100 / 2000) and not estimate.pace.same_steps


def test_run_of_a_few_steps_tells_nothing(fits, workspace):
    write_run(workspace, demo(), steps=3)
    (workspace.runs / "broken").mkdir()
    (workspace.runs / "broken" / "run.json").write_text("{", encoding="utf-8")
    assert fits.judge(demo()).pace is None


# The command ---------------------------------------------------------------------------------------------------------


def test_command_is_broken_as_each_shell_allows(tmp_path):
    folder = tmp_path / "my studio"
    windows = write_command(make_machine(system="Windows"), folder)
    assert windows.count(" ^\n") == 2 and f'"{folder}"' in windows and windows.startswith('py "')
    linux = write_command(LAPTOP, folder)
    assert linux.count(" \\\n") == 2 and f"'{folder}'" in linux and " train recipe.json" in linux


def test_reasons_are_words_in_both_languages(fits):
    for model in (*fits.models([]), *fits.picks()):
        for words in SAYS.values():
            assert "{" not in words.say(model.fit.reason) and words.has(model.fit.reason.id)
    assert SAYS["en"].say(literal("x")) == "x"


@pytest.mark.parametrize(
    "gigabytes, changes, verdict",
    [
        (12, {}, "fits"),  # the planner fills the card, yet with all recomputed 8.2 GB do
        (9, {}, "tight"),
        (8, {}, "no"),
        (24, {"model.quantization": "none"}, "fits"),
        (20, {"model.quantization": "none"}, "tight"),
        (12, {"run.activation_checkpointing": "off", "optim.batch_size": 8}, "no"),
    ],
)
def test_run_is_judged_by_what_it_needs_not_by_what_it_takes(gigabytes, changes, verdict):
    recipe = demo(**{"data.max_length": 2048, "optim.batch_size": 1, "model.quantization": "nf4", **changes})
    machine = make_machine(make_gpu(gigabytes, (8, 6)))
    planned = estimate_module.make_plan(machine, recipe, outline_sizes()["8B"])
    assert planned.verdict == verdict
    if verdict == "no":
        assert sum(planned.peak.values()) > int(0.9 * gigabytes * 2**30)


def test_folders_are_not_looked_through_at_every_click(fits, monkeypatch):
    looked = []
    real = module.list_places
    monkeypatch.setattr(module, "list_places", lambda folders: looked.append(1) or real(folders))
    assert [model.source for model in fits.models()] == ["demo"]
    fits.picks()
    assert fits.models()[0].fit.verdict == "fits" and len(looked) == 1
    list(fits.scan())
    assert len(looked) == 2

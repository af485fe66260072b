"""Results sent to a hub on this machine: private, gone on with after a cut, and nothing secret in any byte."""

from __future__ import annotations

import json

import pytest

from studio.core.errors import StudioError
from studio.core.events import EvalLogged, StepLogged
from studio.core.i18n import load_catalogue
from studio.core.recipe import DatasetSpec, ModelChoice, Recipe
from studio.core.run_record import RunRecord
from studio.hub.model_upload import list_files, strike_token, upload_folder
from studio.services.model_card import write_card
from tests.hub.hub_server import TOKEN, open_hub

HOME = "/" + "home/somebody"
CARD = "---\nlibrary_name: peft\n---\n# Mine\n"


@pytest.fixture
def hub(monkeypatch):
    """The server, with its address and token in the environment."""
    found = open_hub(monkeypatch)
    yield found
    found.close()


@pytest.fixture
def folder(tmp_path):
    """An export: two large files, small ones, and what must not go."""
    import torch
    from safetensors.torch import save_file

    made = tmp_path / "run-adapter"
    made.mkdir()
    for i in (1, 2):
        save_file({"a": torch.randn(64, 64)}, made / f"model-0000{i}-of-00002.safetensors")
    (made / "adapter_config.json").write_text('{"r": 4}', encoding="utf-8")
    (made / "chat_template.jinja").write_text("{{ messages }}", encoding="utf-8")
    (made / "studio-export.json").write_text(
        f'{{"base": "{HOME}/model", "key": "{TOKEN}"}}', encoding="utf-8"
    )
    (made / "optimizer.pt").write_bytes(b"\x80\x04")
    (made / "train.jsonl").write_text('{"secret row": 1}\n', encoding="utf-8")
    return made


def send(folder, repo="me/tuned", **more):
    return upload_folder(folder, repo, CARD, lambda done, whole: None, lambda: False, **more)


SENT = {
    "README.md",
    "adapter_config.json",
    "chat_template.jinja",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
}


def test_it_is_private_whole_and_only_what_was_listed(hub, folder):
    assert {one.name for one in list_files(folder, CARD)} == SENT
    answer = send(folder)
    repo = hub.repos["me/tuned"]
    assert repo["private"] and set(repo["files"]) == SENT and answer["account"] == "me"
    for name in SENT - {"README.md"}:
        assert repo["files"][name][0] == (folder / name).read_bytes()
    assert repo["files"]["README.md"][0].decode() == CARD
    bodies = b"".join(body + path.encode() for _, path, body in hub.sent)
    for private in (TOKEN.encode(), b"somebody", b"secret row", str(folder).encode()):
        assert private not in bodies
    assert all(not said for path, said in hub.authorisations if path.startswith("/put/"))


def test_after_a_cut_it_goes_on_and_sends_nothing_twice(hub, folder):
    hub.cut_after = 1
    first = None
    try:
        send(folder)
    except StudioError as error:
        first = error.what.id
    assert first in (None, "upload.unreachable")  # the library itself tries a cut file anew
    hub.sent.clear()
    send(folder)
    assert set(hub.repos["me/tuned"]["files"]) == SENT
    again = hub.uploads()
    hub.sent.clear()
    send(folder)
    assert hub.uploads() == 0 and again <= 1
    assert not [path for method, path, _ in hub.sent if "commit" in path]


@pytest.mark.parametrize("fault", ["login", "public", "no_space", "name", "no_token"])
def test_each_refusal_has_its_words_and_no_token_in_them(hub, folder, monkeypatch, fault):
    repo = "me/tuned"
    if fault == "login":
        monkeypatch.setenv("HF_TOKEN", TOKEN + "wrong")
    elif fault == "public":
        hub.repos[repo] = {"private": False, "files": {}}
    elif fault == "no_space":
        hub.full = True
    elif fault == "name":
        repo = "../../etc"
    elif fault == "no_token":
        monkeypatch.setenv("HF_TOKEN", "")
        monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
        monkeypatch.setenv("HF_HOME", str(folder.parent / "home"))
    with pytest.raises(StudioError) as refused:
        send(folder, repo)
    error = refused.value
    assert error.what.id in (f"upload.{fault}", "upload.login" if fault == "no_token" else "")
    for language in ("en", "zh-CN"):
        said = " ".join(map(load_catalogue(language).say, (error.what, error.why, error.fix)))
        assert TOKEN not in said and "upload." not in said and "hf_Sec" not in said
    assert not hub.repos.get("me/tuned", {"files": {}})["files"] or fault == "no_space"


def test_a_public_repository_is_taken_when_it_is_asked_for(hub, folder):
    send(folder, public=True)
    assert not hub.repos["me/tuned"]["private"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("adapter_config.json", f'{{"base_model_name_or_path": "{HOME}/models/base"}}'),
        ("tokenizer_config.json", '{"name_or_path": "C:\\\\Users\\\\me\\\\m"}'),
        ("Modelfile", f"FROM x\nSYSTEM {TOKEN}\n"),
    ],
)
def test_a_file_with_a_path_or_token_stops_everything_before_anything_is_sent(hub, folder, name, words):
    (folder / name).write_text(words, encoding="utf-8")
    with pytest.raises(StudioError) as refused:
        send(folder)
    assert refused.value.what.id == "upload.secret" and not hub.sent


def test_the_token_is_struck_from_any_words():
    said = strike_token(f"bad {TOKEN} and hf_ABCDEFGHIJKL", {"HF_TOKEN": TOKEN})
    assert said == "bad … and …"


def test_the_card_describes_and_shows_nothing_private():
    recipe = Recipe(
        model=ModelChoice(source=f"{HOME}/base"),
        data=DatasetSpec(source=f"{HOME}/rows.jsonl", system_prompt="secret words"),
    )
    record = RunRecord(run="r", name="My <b>run</b> [x](y)", state="finished", created_s=0, base="org/base")
    rest = {"total_steps": 30, "epoch": 0.0, "lr": 0.1, "grad_norm": 1.0, "tokens_per_s": 1.0}
    order = [*range(1, 21), *range(15, 31)]  # goes on from a checkpoint at step 14
    events = [StepLogged(step=step, loss=3 / step, **rest) for step in order]
    card = write_card(record, recipe, [*events, EvalLogged(step=30, loss=0.25)], "adapter", "apache-2.0")
    assert (
        "base_model: org/base" in card
        and "license: apache-2.0" in card
        and "| 30 | 0.1000 | 0.2500 |" in card
    )
    for private in ("somebody", "secret", "rows.jsonl", "<b>"):
        assert private not in card
    shown = [
        int(line.split("|")[1]) for line in card.split("## Curve")[1].splitlines() if line[2:3].isdigit()
    ]
    assert shown == sorted(set(shown))
    head = card.split("---")[1]
    assert "base_model_relation: adapter" in head and "library_name: peft" in head
    merged = write_card(record, recipe, [], "gguf_q4_k_m")
    assert "base_model_relation: quantized" in merged and json.dumps(card)

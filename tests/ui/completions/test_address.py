"""The OpenAI-compatible address, asked by the official client and by programs that mean harm."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import openai
import pytest

from studio.core.recipe import change_recipe
from studio.services.desk import Desk
from studio.ui.auth import connections
from studio.ui.auth.rate_limit import ALLOWANCES
from studio.ui.completions import app as completions_app
from studio.ui.completions.app import BODY_BYTES, Completions, Limits
from studio.ui.completions.served import EveryRun, OneModel
from studio.ui.completions.server import AddressServer

QUESTION = [{"role": "user", "content": "say 3"}]
MOST_TOKENS = 100


@pytest.fixture(scope="module")
def shop(tmp_path_factory, tiny_models, know_machine):
    """A desk, a run of 8 steps with a checkpoint after 4, its recipe, and an address of that run."""
    from studio.services.recipes import read_recipe
    from tests.conftest import chat_rows, write_jsonl
    from tests.launched import write_recipe

    folder = tmp_path_factory.mktemp("address")
    data = write_jsonl(folder / "chats.jsonl", chat_rows(24))
    recipe = change_recipe(
        read_recipe(str(write_recipe(folder, tiny_models(), data))),
        {"run.save_every": 4, "run.keep_checkpoints": 3, "run.trial": False, "optim.max_steps": 8},
    )
    desk = Desk(know_machine(folder / "workspace"))
    run = desk.queue.start(recipe, checked=True)
    assert desk.runs.wait(run).state == "finished"
    app = Completions(
        desk.chat, OneModel("mine", run=run), lambda: "en", Limits(tokens=MOST_TOKENS, waiting=40)
    )
    server = AddressServer(app)
    yield desk, run, recipe, server
    server.close()
    desk.close()


@pytest.fixture
def client(shop):
    with openai.OpenAI(base_url=shop[3].url, api_key=shop[3].key, max_retries=0, timeout=60) as found:
        yield found


def ask(shop, **body):
    """One request as any program would send it."""
    return httpx.post(
        f"{shop[3].url}/chat/completions",
        json={"model": "mine", "messages": QUESTION, "max_tokens": 4} | body,
        headers={"authorization": f"Bearer {shop[3].key}"},
        timeout=60,
    )


def read_stream(stream) -> str:
    return "".join(part.choices[0].delta.content or "" for part in stream if part.choices)


def assert_nothing_left(desk: Desk) -> None:
    """No answer is asked for any more, and every page of keys and values is free or known."""
    until_s = time.monotonic() + 10
    while (desk.chat._asked or desk.chat.waiting) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert not desk.chat._asked and not desk.chat.waiting
    with desk.chat._hold:
        pool = desk.chat._speaker._answerers["tuned"]._generator._pool
        assert pool.room == pool.count


def test_the_official_client_gets_whole_answers_and_streams(shop, client):
    desk, run, _, _ = shop
    assert [one.id for one in client.models.list()] == ["mine", "mine:base"]
    assert client.models.retrieve("mine").id == "mine"
    wanted = [one.words for one in desk.chat.answer(QUESTION, run=run, max_new_tokens=20)][-1]
    fields = {"model": "mine", "messages": QUESTION, "temperature": 0, "max_tokens": 20}
    whole = client.chat.completions.create(**fields)
    assert whole.choices[0].message.content == wanted
    assert whole.choices[0].finish_reason == ("length" if whole.usage.completion_tokens == 20 else "stop")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    parts = list(
        client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    )
    assert read_stream(parts) == wanted and parts[-1].usage == whole.usage
    assert parts[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    base = client.chat.completions.create(**fields | {"model": "mine:base"}).choices[0].message.content
    assert (
        base == [one.words for one in desk.chat.answer(QUESTION, run=run, side="base", max_new_tokens=20)][-1]
    )
    assert base != wanted


def test_choices_follow_the_seed_and_end_at_stops(client):
    fields = {"model": "mine", "messages": QUESTION, "temperature": 1.5, "max_tokens": 30, "n": 3}
    first, again, other = (
        [one.message.content for one in client.chat.completions.create(**fields, seed=seed).choices]
        for seed in (1, 1, 9)
    )
    assert first == again and len(set(first)) == 3 and not set(first) & set(other)
    words = max(first, key=len)
    stop = words[len(words) // 2 : len(words) // 2 + 2]
    place = first.index(words)
    choice = client.chat.completions.create(**fields, seed=1, stop=[stop, "never said"]).choices[place]
    assert choice.message.content == words.partition(stop)[0] and choice.finish_reason == "stop"
    streamed = client.chat.completions.create(**fields | {"n": 1}, seed=1 + place, stop=stop, stream=True)
    assert read_stream(streamed) == words.partition(stop)[0]


def test_log_probabilities_are_those_of_each_token_said(client):
    fields = {"model": "mine", "messages": QUESTION, "temperature": 0, "max_tokens": 12, "logprobs": True}
    [choice] = client.chat.completions.create(**fields, top_logprobs=3).choices
    said = choice.logprobs.content
    for one in said:
        assert one.logprob == max(top.logprob for top in one.top_logprobs) <= 0
        assert len(one.top_logprobs) == 3 and one.top_logprobs[0].token == one.token
    ours = b"".join(bytes(one.bytes) for one in said if one.bytes is not None).decode("utf-8", "ignore")
    assert ours in choice.message.content or choice.message.content in ours
    parts = [
        one
        for part in client.chat.completions.create(**fields, stream=True)
        for one in (part.choices[0].logprobs.content if part.choices[0].logprobs else [])
    ]
    assert [one.token for one in parts] == [one.token for one in said]


def test_texts_are_continued_without_a_template(client):
    fields = {"model": "mine:base", "max_tokens": 8, "temperature": 0}
    both = client.completions.create(**fields, prompt=["abc", "xyz"], logprobs=1)
    assert [one.index for one in both.choices] == [0, 1]
    alone = client.completions.create(**fields, prompt="xyz")
    assert alone.choices[0].text == both.choices[1].text and both.usage.prompt_tokens == 6
    assert len(both.choices[0].logprobs.tokens) == 8
    streamed = client.completions.create(**fields, prompt="xyz", stream=True)
    assert "".join(part.choices[0].text for part in streamed) == alone.choices[0].text


def test_32_clients_at_once_hear_their_own_answer_alone(shop, client):
    fields = {"model": "mine", "temperature": 1.0, "max_tokens": 40}

    def fields_of(number: int) -> dict:
        messages = [{"role": "user", "content": f"say {number} " * (1 + number % 5)}]
        return fields | {"messages": messages, "seed": number}

    alone = [client.chat.completions.create(**fields_of(i)).choices[0].message.content for i in range(32)]
    start = threading.Barrier(32)

    def listen(number: int) -> str | None:
        start.wait()
        stream = client.chat.completions.create(**fields_of(number), stream=True)
        if number % 4:
            return read_stream(stream)
        for part in stream:
            if part.choices and part.choices[0].delta.content:
                break
        stream.close()  # this client leaves in the middle
        return None

    with ThreadPoolExecutor(32) as pool:
        heard = list(pool.map(listen, range(32)))
    assert [one for one in heard if one is not None] == [one for i, one in enumerate(alone) if i % 4]
    assert_nothing_left(shop[0])
    assert client.chat.completions.create(**fields_of(3)).choices[0].message.content == alone[3]


def test_who_leaves_frees_its_place_long_before_its_answer_would_end(shop, client):
    desk = shop[0]
    fields = {"model": "mine", "messages": QUESTION, "max_tokens": MOST_TOKENS, "n": 16, "temperature": 1.0}
    began_s = time.monotonic()
    client.chat.completions.create(**fields)
    whole_s = time.monotonic() - began_s
    for _ in range(3):
        with pytest.raises(openai.APITimeoutError):
            client.with_options(timeout=whole_s / 8).chat.completions.create(**fields)
        left_s = time.monotonic()
        assert_nothing_left(desk)
        assert time.monotonic() - left_s < max(0.5, whole_s / 2)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_tokens": 4.5}, "max_tokens"),
        ({"max_completion_tokens": MOST_TOKENS + 1}, "max_completion_tokens"),
        ({"n": 10**9}, "n"),
        ({"seed": "1"}, "seed"),
        ({"seed": 2**70}, "seed"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [1]}, "messages"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": QUESTION * 3000}, "messages"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "code"}]}, "tools[0]"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"presence_penalty": -1}, "presence_penalty"),
        ({"logit_bias": {"5": 100}}, "logit_bias"),
        ({"store": True}, "store"),
        ({"best_of": 4}, "best_of"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"guided_regex": "a*"}, "guided_regex"),
        ({"model": 3}, "model"),
        ({"model": ""}, "model"),
    ],
    ids=lambda part: json.dumps(part)[:40] if isinstance(part, dict) else part,
)
def test_what_cannot_be_done_is_refused_with_the_field_that_is_meant(shop, body, field):
    answer = ask(shop, **body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == field and field in error["message"]
    assert (
        error.keys() == {"message", "type", "param", "code", "sentences"}
        and error["type"] == "invalid_request_error"
    )


def test_what_changes_nothing_is_taken(shop):
    taken = {"user": "me", "metadata": {"a": "b"}, "frequency_penalty": 0, "logit_bias": {}, "store": False}
    assert ask(shop, **taken, n=None, stop=None, response_format={"type": "text"}).status_code == 200
    parts = [{"type": "text", "text": "say "}, {"type": "text", "text": "3"}]
    whole = ask(shop, temperature=0).json()["choices"]
    assert ask(shop, temperature=0, messages=[{"role": "user", "content": parts}]).json()["choices"] == whole


def test_a_schema_without_the_package_that_keeps_to_it_is_refused_by_its_name(shop, monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    answer = ask(shop, response_format={"type": "json_object"})
    assert answer.status_code == 400 and "llguidance" in answer.json()["error"]["message"]
    assert ask(shop).status_code == 200


def test_a_talk_beyond_the_models_length_is_refused_and_the_others_go_on(shop, client):
    found = []
    long = [{"role": "user", "content": "x" * 5000}]
    thread = threading.Thread(target=lambda: found.append(ask(shop, max_tokens=60, temperature=0)))
    thread.start()
    answer = ask(shop, messages=long)
    thread.join(30)
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "chat.too_long"
    assert found[0].status_code == 200
    assert_nothing_left(shop[0])


def send(shop, method: str, path: str, body: bytes = b"", **headers: str) -> httpx.Response:
    own = {"authorization": f"Bearer {shop[3].key}", "content-type": "application/json"}
    own |= {name.replace("_", "-"): value for name, value in headers.items()}
    address = shop[3].url.removesuffix("/v1") + path
    return httpx.request(method, address, content=body, headers=own, timeout=30)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b"\xff\xfe{}", 400),
        (b'{"model": "\\ud800"}', 400),
        (b'{"a":' * 100_000, 400),
        (b'{"n": ' + b"9" * 100_000 + b"}", 400),
        (b'{"model":"mine","messages":[{"role":"user","content":"a"}],"temperature":NaN}', 400),
        (b" " * (BODY_BYTES + 1), 413),
    ],
)
def test_broken_and_large_bodies(shop, body, status):
    answer = send(shop, "POST", "/v1/chat/completions", body)
    assert answer.status_code == status and answer.json()["error"]["message"]


def test_100_mb_in_chunks_are_cut_off(shop):
    def pour():
        for _ in range(100):
            yield b" " * 2**20

    address = f"{shop[3].url}/chat/completions"
    headers = {"authorization": f"Bearer {shop[3].key}", "content-type": "application/json"}
    try:
        status = httpx.post(address, content=pour(), headers=headers, timeout=30).status_code
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        status = 413  # it closed on us while we were still sending
    assert status == 413 and ask(shop).status_code == 200


def test_only_the_key_opens_it_and_only_under_its_own_name(shop, monkeypatch):
    for key in ("", "Bearer", "Bearer x", "Basic " + shop[3].key, "Bearer " + shop[3].key + "x"):
        answer = send(shop, "GET", "/v1/models", authorization=key)
        assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
    assert send(shop, "GET", "/v1/models", host="evil.example").status_code == 403
    assert send(shop, "GET", "/v1/models").status_code == 200
    assert send(shop, "GET", "/v1/chat/completions").status_code == 405
    assert send(shop, "POST", "/v1/embeddings", b"{}").status_code == 404
    assert send(shop, "POST", "/v1/completions", b"a=b", content_type="text/plain").status_code == 415
    # As usual, but that no time passes: a busy machine is slower than its allowance.
    monkeypatch.setitem(ALLOWANCES, "stranger", replace(ALLOWANCES["stranger"], rate=0.0))
    statuses = [send(shop, "GET", "/v1/models", authorization="Bearer x").status_code for _ in range(70)]
    assert set(statuses) == {401, 429}, "guessing is slowed down"
    assert send(shop, "GET", "/v1/models").status_code == 200, "and whoever has the key is not"


def test_slow_senders_are_let_go(shop, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    monkeypatch.setattr(completions_app, "BODY_S", 0.3)
    place = "127.0.0.1", shop[3].port
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{shop[3].port}\r\n"
    known = f"Authorization: Bearer {shop[3].key}\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{{"
    for words, said in ((head, b""), (head + "Content-Length: 50\r\n\r\n{", None), (head + known, b" 408 ")):
        with socket.create_connection(place, timeout=10) as sender:
            sender.sendall(words.encode())
            answer = b""
            while part := sender.recv(4096):
                answer += part
            assert said is None or (said in answer and bool(said) == bool(answer))
    assert ask(shop).status_code == 200


def test_more_than_may_wait_are_told_to_come_again(shop):
    desk = shop[0]
    with desk.chat._hold:  # somebody has the model
        with ThreadPoolExecutor(3) as pool:
            first = [pool.submit(ask, shop, n=16, max_tokens=2) for _ in range(2)]
            until_s = time.monotonic() + 10
            while desk.chat.waiting < 32 and time.monotonic() < until_s:
                time.sleep(0.01)
            refused = ask(shop, n=16)
            assert refused.status_code == 429 and refused.json()["error"]["code"] == "queue_full"
            assert "retry-after" in refused.headers
            desk.chat._hold.release()
            try:
                assert [one.result().status_code for one in first] == [200, 200]
            finally:
                desk.chat._hold.acquire()
    assert_nothing_left(desk)


def test_a_run_that_trains_goes_first(shop, client):
    desk, _, recipe, _ = shop
    changes = {"optim.max_steps": 100_000, "run.save_every": 0}
    stream = client.chat.completions.create(
        model="mine", messages=QUESTION, max_tokens=MOST_TOKENS, n=16, temperature=1.5, stream=True
    )
    next(iter(stream))
    other = desk.queue.start(change_recipe(recipe, changes), checked=True)
    try:
        with pytest.raises(openai.APIError) as broken:
            list(stream)
        assert broken.value.code in ("interrupted", "training")
        answer = ask(shop)
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "training"
        desk.runs.pause(other)
        until_s = time.monotonic() + 60
        while not desk.chat.state().ok and time.monotonic() < until_s:
            time.sleep(0.05)
        assert ask(shop).status_code == 200, "a paused run leaves room"
    finally:
        desk.runs.stop(other)
        desk.runs.wait(other)
    assert ask(shop).status_code == 200


def test_every_run_of_a_desk_has_a_name_at_the_windows_own_port(shop):
    desk, run, _, _ = shop
    served = EveryRun(desk)
    assert run in [one.name for one in served.list()]
    assert (served.find(run).checkpoint, served.find(run).side) == ("", "tuned")
    whom = served.find(f"{run}@4:base")
    assert (whom.run, whom.checkpoint, whom.side) == (run, "step-00000004", "base")
    for name in ("none-0000", "../x", f"{run}@", "", "a" * 500, f"{run}:base:base"):
        assert served.find(name) is None

"""A page that asks and never listens is refused, and what waits for all pages together stays bounded."""

import gradio as gr
import pytest
from starlette.testclient import TestClient

from studio.ui.shell import unheard
from studio.ui.shell.unheard import MESSAGES_ALL, MESSAGES_EACH, has_room

JOIN = "/gradio_api/queue/join"


@pytest.fixture
def asked():
    """A page, its app, and a function that asks in a session and waits for the answer to be there."""
    with gr.Blocks() as blocks:
        gr.Button().click(lambda: "x" * 1000, None, gr.Textbox())
    blocks.queue(max_size=None)
    app = gr.routes.App.create_app(blocks)
    with TestClient(app) as client:
        client.get("/gradio_api/startup-events")  # begins the queue

        def ask(session: str) -> None:
            had = count(blocks, session)
            body = {"data": [], "fn_index": 0, "session_hash": session}
            assert client.post(JOIN, json=body).status_code == 200
            for _ in range(2000):
                if count(blocks, session) >= had + 2:
                    return
                client.portal.call(wait)
            raise AssertionError("never answered")

        yield blocks, client, ask


async def wait() -> None:
    """Let the app work."""
    import asyncio

    await asyncio.sleep(0.005)


def count(blocks: gr.Blocks, session: str) -> int:
    """Return how many messages wait for a session."""
    waiting = blocks._queue.pending_messages_per_session
    return waiting[session].qsize() if session in waiting else 0


def test_a_page_that_never_listens_may_not_go_on_asking(asked):
    blocks, client, ask = asked
    assert client.portal.call(has_room, blocks, "deaf")
    while count(blocks, "deaf") < MESSAGES_EACH:
        assert client.portal.call(has_room, blocks, "deaf")
        ask("deaf")
    assert not client.portal.call(has_room, blocks, "deaf")
    assert client.portal.call(has_room, blocks, "another"), "the others go on"
    with client.stream("GET", "/gradio_api/queue/data?session_hash=deaf") as answer:
        assert sum("process_completed" in line for line in answer.iter_lines()) >= MESSAGES_EACH // 3
    assert client.portal.call(has_room, blocks, "deaf"), "who has listened may ask again"


def test_where_all_have_too_much_the_page_with_the_most_is_given_up(asked, monkeypatch):
    blocks, client, ask = asked
    assert MESSAGES_EACH < MESSAGES_ALL
    monkeypatch.setattr(unheard, "MESSAGES_ALL", 12)
    ask("polite")
    for _ in range(4):
        ask("deaf")
    assert client.portal.call(has_room, blocks, "third")
    assert count(blocks, "deaf") == 0 and count(blocks, "polite") > 0
    assert "deaf" not in blocks._queue.pending_event_ids_session

"""What Gradio would answer with a fault of the server is refused before it is asked, or answered as not there."""

import json

import gradio as gr
import pytest
from starlette.testclient import TestClient

from studio.ui.shell.bad_requests import (
    BOUNDARY_LETTERS,
    EXCEPTION_HANDLERS,
    NAME_BYTES,
    has_boundary,
    has_long_name,
)


@pytest.mark.parametrize(
    ("path", "is_long"),
    [
        ("/static/" + "x" * NAME_BYTES, False),
        ("/static/" + "x" * (NAME_BYTES + 1), True),
        ("/static/" + "ü" * 128, True),
        ("/" + "x/" * 900, False),
    ],
)
def test_a_part_of_a_path_that_no_file_system_takes(path, is_long):
    assert has_long_name(path) == is_long


@pytest.mark.parametrize(
    ("kind", "has"),
    [
        ("multipart/form-data; boundary=----WebKitFormBoundaryx1", True),
        ('multipart/form-data; boundary="a b"; charset=utf-8', True),
        ("multipart/form-data", False),
        ("multipart/form-data; boundary=", False),
        ("multipart/form-data; boundary=" + "b" * BOUNDARY_LETTERS, True),
        ("multipart/form-data; boundary=" + "b" * (BOUNDARY_LETTERS + 1), False),
    ],
)
def test_a_form_of_several_parts_needs_a_boundary(kind, has):
    assert has_boundary(kind) == has


@pytest.mark.parametrize("number", [-1, 99, 10**40])
def test_a_number_that_is_no_handler_s_is_not_there(number):
    with gr.Blocks() as blocks:
        gr.Button().click(lambda: None)
    app = gr.routes.App.create_app(blocks, app_kwargs={"exception_handlers": EXCEPTION_HANDLERS})
    client = TestClient(app)  # raises whatever is not answered
    body = {"data": [], "fn_index": number, "session_hash": "s"}
    assert client.post("/gradio_api/queue/join", json=body).status_code == 404


@pytest.mark.parametrize("data", ["\ud83d", {"a": ["\udc00"]}, "<img src=x>", 1])
def test_a_body_of_another_form_is_refused_and_not_quoted(data):
    with gr.Blocks() as blocks:
        gr.Button().click(lambda: None)
    app = gr.routes.App.create_app(blocks, app_kwargs={"exception_handlers": EXCEPTION_HANDLERS})
    client = TestClient(app)
    words = json.dumps({"data": data, "fn_index": 0, "session_hash": "s"})
    answer = client.post(
        "/gradio_api/queue/join", content=words, headers={"content-type": "application/json"}
    )
    assert (answer.status_code, answer.text) == (422, "")

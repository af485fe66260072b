"""What studio/ui/shell knows of Gradio although Gradio promises none of it: a failure says what a new Gradio changed.

Each test is one assumption, with the file that makes it. Where one fails, mend that file: nothing else knows of it.
"""

from __future__ import annotations

import importlib
import inspect
import re
from functools import cache

import gradio as gr
import pytest
import uvicorn
from gradio.context import Context as BuildContext

from studio.ui.shell import blocks as own_blocks
from studio.ui.shell import gradio_import, launch, routes
from studio.ui.shell.asset_preload import THEME, find_front_end, read_names
from studio.ui.shell.html_events import make_voice
from studio.ui.shell.scripts import UI


def changed(what: str, where: str) -> str:
    """The message of a failure."""
    return f"Gradio {gr.__version__}: {what}. See studio/ui/shell/{where}."


@cache
def front_end() -> str:
    """All scripts and styles that Gradio's pages are made of."""
    folder = find_front_end()
    assert folder is not None, changed("its front end is not in templates/frontend", "asset_preload.py")
    files = [path for path in (folder / "assets").iterdir() if path.suffix in (".js", ".css")]
    return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in files)


@pytest.fixture
def window() -> gr.Blocks:
    own_blocks.count_from_nought()
    with gr.Blocks(analytics_enabled=False) as window:
        gr.Textbox("before", elem_id="box")
        make_voice("#box", "voice")
    return window


def test_components_are_numbered_from_the_context(window):
    ids = sorted(number for number in window.blocks)
    assert ids[0] <= 1 and BuildContext.id > ids[-1], changed(
        "numbers of components no longer come from Context.id", "blocks.py"
    )


def test_a_page_is_made_of_the_configs_components(window):
    own_blocks.fill_values(window, {"box": "after"})
    parts = window.config["components"]
    values = [part["props"]["value"] for part in parts if part["props"].get("elem_id") == "box"]
    assert values == ["after"], changed(
        "a page's values are not in config['components'][i]['props']", "blocks.py"
    )
    shown = window.get_config_file()["components"]
    assert [part["id"] for part in shown] == [part["id"] for part in parts], changed(
        "get_config_file() lists the components otherwise than config", "blocks.py"
    )


def test_a_twins_words_take_the_place_of_the_windows(window):
    own_blocks.count_from_nought()
    with gr.Blocks(analytics_enabled=False) as twin:
        gr.Textbox("other", elem_id="box")
        make_voice("#box", "voice")
    ids = [part["id"] for part in window.config["components"]]
    own_blocks.take_words(window, twin)
    parts = window.config["components"]
    assert [part["id"] for part in parts] == ids and "other" in [
        part["props"].get("value") for part in parts
    ], changed("config cannot be exchanged", "blocks.py")


def test_the_queue_says_how_long_it_sleeps(window):
    window.queue()
    for name in ("sleep_when_free", "progress_update_sleep_when_free"):
        known = isinstance(getattr(window._queue, name, None), (int, float))
        assert known, changed(
            f"the queue has no {name}: an idle studio wakes a thousand times a second", "launch.py"
        )


def test_launch_and_mount_take_what_we_give_them():
    both = {*launch.NEVER, "footer_links", "allowed_paths", "favicon_path", "css_paths", "theme"}
    both |= {"app_kwargs", "blocked_paths", "max_file_size"}
    alone = {
        "server_name",
        "server_port",
        "inbrowser",
        "prevent_thread_lock",
        "quiet",
        "strict_cors",
        "share",
        "js",
    }
    given = {
        gr.Blocks.launch: both | alone | {"state_session_capacity"},
        gr.mount_gradio_app: both | {"path"},
    }
    for function, names in given.items():
        gone = names - set(inspect.signature(function).parameters)
        assert not gone, changed(f"{function.__qualname__} takes no {', '.join(sorted(gone))}", "launch.py")


def test_the_apps_middleware_can_be_put_in_order(window):
    app = gr.routes.App.create_app(window)
    assert all(hasattr(one, "cls") for one in app.user_middleware) and callable(app.build_middleware_stack), (
        changed(
            "its middleware cannot be sorted: a foreign page would be answered before our gate is asked",
            "launch.py",
        )
    )


def test_a_running_server_can_be_hardened():
    server = uvicorn.Server(uvicorn.Config(lambda: None))
    server.config.load()  # as its start does
    for name in ("timeout_keep_alive", "http_protocol_class", "limit_concurrency", "encoded_headers"):
        assert hasattr(server.config, name), changed(f"uvicorn's config has no {name}", "launch.py")
    assert hasattr(server.server_state, "default_headers"), changed(
        "uvicorn keeps the headers of its answers elsewhere", "launch.py"
    )


def list_paths(found, prefix: str = "") -> list[str]:
    """Return every path of an app, without what stands in braces."""
    paths = []
    for route in found:
        if hasattr(route, "original_router"):
            inner = prefix + getattr(route.include_context, "prefix", "")
            paths += list_paths(route.original_router.routes, inner)
        else:
            paths.append(prefix + re.sub(r"\{.*", "", route.path))
    return paths


def test_every_address_that_we_open_is_one_of_gradios(window):
    served = list_paths(gr.routes.App.create_app(window).routes)
    for path in (one for one in routes.WORKING if one != routes.ANSWERS):  # that one is the studio's own
        known = any(one.startswith(path.rstrip("/=")) for one in served)
        assert known, changed(f"{path} is not served any more", "routes.py")


def test_html_takes_templates_scripts_and_server_functions():
    gone = {"html_template", "js_on_load", "server_functions", "apply_default_css"} - set(
        inspect.signature(gr.HTML.__init__).parameters
    )
    assert not gone, changed(f"gr.HTML takes no {', '.join(sorted(gone))}", "html_events.py")


@pytest.mark.parametrize("name", ["element", "trigger", "props", "server", "watch"])
def test_a_components_script_is_called_with_the_names_it_uses(name):
    calls = re.findall(r"Function\(((?:[`'\"]\w+[`'\"],){3,})", front_end())
    assert any(re.search(rf"[`'\"]{name}[`'\"]", call) for call in calls), changed(
        f"js_on_load is called without `{name}`", "html_events.py"
    )


def test_events_of_any_name_reach_the_server(window):
    voice = next(block for block in window.blocks.values() if block.elem_id == "voice")
    with window:
        voice.said(lambda value: None, [voice], [])
    assert any(target[1] == "said" for fn in window.fns.values() for target in fn.targets), changed(
        "gr.HTML has no events with names of our own", "html_events.py"
    )


def test_a_handlers_request_holds_the_scope():
    assert "request" in inspect.signature(gr.Request.__init__).parameters, changed(
        "gr.Request does not hold the request with the gate's word", "blocks.py"
    )


def test_faults_can_be_told_shortly():
    known = inspect.iscoroutinefunction(gr.Blocks.process_api) and {"print_exception", "visible"} <= set(
        inspect.signature(gr.Error.__init__).parameters
    )
    assert known, changed("a handler's fault cannot be kept out of the log", "blocks.py")


def test_the_stub_writer_is_where_it_is_left_out():
    module = importlib.import_module(gradio_import.MODULE)
    assert callable(getattr(module, gradio_import.WRITER, None)), changed(
        f"{gradio_import.MODULE}.{gradio_import.WRITER} is gone: if nothing took its place, delete the import hook",
        "gradio_import.py",
    )


def test_a_page_names_its_files(tmp_path):
    names = read_names(find_front_end(), tmp_path / "none.json")
    assert {name.rpartition(".")[2] for name in names} == {"js", "css"}, changed(
        "index.html names no /assets/ files", "asset_preload.py"
    )
    assert THEME in front_end(), changed(
        f"the address no longer tells the colours by {THEME}", "asset_preload.py"
    )


def hooks() -> list[tuple[str, str]]:
    """Every class and test id of Gradio that our styles and scripts look for, with the file."""
    found = set()
    for path in [*UI.rglob("*.js"), *UI.rglob("*.css")]:
        words = path.read_text(encoding="utf-8")
        for hook in re.findall(r"\.((?:label-wrap|toast-\w+|gradio-container))\b", words):
            found.add((hook, path.relative_to(UI).as_posix()))
        for hook in re.findall(r"data-testid=[\"']?([\w-]+)", words):
            found.add((hook, path.relative_to(UI).as_posix()))
    return sorted(found)


@pytest.mark.parametrize(("hook", "file"), hooks())
def test_what_our_scripts_and_styles_look_for_is_in_the_page(hook, file):
    assert hook in front_end(), (
        f"Gradio {gr.__version__}: `{hook}` is not in its pages any more. See studio/ui/{file}."
    )

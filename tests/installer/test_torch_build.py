"""Which build of torch fits a machine, and the first one of them that an index lists."""

from __future__ import annotations

import contextlib
import http.server
import sys
import threading
import time

import pytest

from studio.installer import torch_build


@pytest.mark.parametrize(
    ("system", "driver", "cards", "amd", "intel", "builds"),
    [
        ("Linux", 13000, [[9, 0]], False, False, ("cu130", "cu129", "cu126")),
        ("Windows", 13010, [[12, 0]], False, False, ("cu130", "cu129")),
        ("Linux", 13000, [[6, 1], [8, 6]], False, False, ("cu126",)),
        ("Windows", 12080, [[8, 9]], False, False, ("cu129", "cu126")),
        ("Linux", 12080, [[12, 0]], False, False, ("cu129",)),
        ("Linux", 12020, [[8, 0]], False, False, ("cu126",)),
        ("Linux", 12020, [[12, 0]], False, False, ("cpu",)),
        ("Linux", 11080, [[7, 0]], False, False, ("cpu",)),
        ("Linux", 13000, [], False, False, ("cu130", "cu129", "cu126")),
        ("Linux", 0, [], True, False, torch_build.ROCM_BUILDS),
        ("Windows", 0, [], True, False, ("cpu",)),
        ("Linux", 0, [], False, True, ("xpu",)),
        ("Linux", 0, [], False, False, ("cpu",)),
        ("Darwin", 0, [], False, False, ()),
    ],
)
def test_the_build_of_torch_follows_from_the_facts(system, driver, cards, amd, intel, builds):
    facts = {"system": system, "cuda_driver": driver, "capabilities": cards, "amd": amd, "intel": intel}
    assert torch_build.choose_builds(facts) == builds


def test_the_facts_of_this_machine_can_be_read():
    facts = torch_build.read_facts(sys.executable)
    assert set(facts) == {"system", "cuda_driver", "capabilities", "amd", "intel"}
    assert facts["system"] == "Linux" and isinstance(facts["cuda_driver"], int)
    assert torch_build.read_facts("/nowhere/python") == {
        "system": "Linux",
        "cuda_driver": 0,
        "capabilities": [],
        "amd": False,
        "intel": False,
    }


@pytest.fixture
def wheel_index():
    """A server in place of PyTorch's index: build cu129 lists the version wanted, cu130 another, slow never answers."""
    pages = {
        "cu130": "torch-2.12.0%2Bcu130-cp311-cp311-x.whl",
        "cu129": "torch-2.13.0%2Bcu129-cp311-cp311-x.whl",
    }
    release = threading.Event()

    class Index(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            build = self.path.split("/")[1]
            if build == "slow":
                release.wait(5)
            self.send_response(200 if build in pages else 404)
            self.end_headers()
            with contextlib.suppress(BrokenPipeError):
                self.wfile.write(pages.get(build, "").encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    release.set()
    server.shutdown()
    server.server_close()


def test_the_first_build_that_the_index_lists_is_taken(wheel_index):
    find = torch_build.find_offered
    assert find(("cu130", "absent", "cu129", "cu126"), "2.13.0", "cp311", wheel_index) == "cu129"
    assert find(("cu129",), "2.13.0", "cp312", wheel_index) == ""
    assert find(("cpu",), "2.13.0", "cp311", "http://127.0.0.1:9") == ""


def test_an_index_that_does_not_answer_is_given_up(wheel_index, monkeypatch):
    monkeypatch.setattr(torch_build, "ANSWER_S", 0.3)
    started = time.monotonic()
    assert torch_build.find_offered(("slow", "cu129"), "2.13.0", "cp311", wheel_index) == ""
    assert time.monotonic() - started < 1.5

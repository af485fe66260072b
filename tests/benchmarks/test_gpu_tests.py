"""The summary of the tests on a GPU: counts, files, measured numbers, failures."""

from __future__ import annotations

from xml.etree.ElementTree import fromstring

from benchmarks import gpu_tests

REPORT = """<testsuites><testsuite>
<testcase classname="tests.engine.test_gpu" name="test_a[lora]" time="2.5" />
<testcase classname="tests.engine.test_gpu" name="test_b" time="1.0">
 <failure message="assert 1 ==&#10;  2" /></testcase>
<testcase classname="tests.models.test_c" name="test_c" time="0.25">
 <properties><property name="distance" value="0.002" /></properties></testcase>
</testsuite></testsuites>"""


def test_what_came_out_is_told():
    found = fromstring(REPORT)
    assert gpu_tests.describe(found)[0] == "Tests that need a GPU: 2 passed, 1 failed, 0 skipped, in 4 s"
    assert gpu_tests.list_files(found) == [
        "     3.5 s  tests/engine/test_gpu.py: 1 passed, 1 failed",
        "     0.2 s  tests/models/test_c.py: 1 passed",
        "",
        "Measured by the tests",
        "tests/models/test_c.py::test_c: distance = 0.002",
        "",
        "Failed",
        "tests/engine/test_gpu.py::test_b: assert 1 == 2",
    ]


def test_it_runs_and_says_how(tmp_path, monkeypatch):
    """On tests that need none: the marker is overruled by a later one."""
    out = tmp_path / "summary.txt"
    assert gpu_tests.main(["--out", str(out), "-m", "not gpu", "tests/core/test_i18n.py"]) == 0
    words = out.read_text(encoding="utf-8")
    assert " 0 failed, 0 skipped" in words and "tests/core/test_i18n.py" in words
    assert "command   python benchmarks/gpu_tests.py -m 'not gpu' tests/core/test_i18n.py" in words

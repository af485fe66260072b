"""A package that only some files need is named when it is missing, and what is broken inside one stays what it is."""

import sys

import pytest

from studio.core.errors import StudioError
from studio.core.packages import import_package


def test_a_missing_package_is_a_refusal_that_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(StudioError) as refused:
        import_package("openpyxl", "openpyxl")
    assert refused.value.what.id == "package.missing"
    assert "pip install openpyxl" in str(refused.value)
    with pytest.raises(StudioError):
        import_package("nobody_has_this.inside", "nobody-has-this")


def test_what_a_package_lacks_itself_is_not_taken_for_it(monkeypatch, tmp_path):
    (tmp_path / "half_a_package.py").write_text("import nobody_has_this", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="nobody_has_this"):
        import_package("half_a_package", "half-a-package")


def test_what_is_there_comes_back():
    assert import_package("json", "json").loads("1") == 1

"""The cache of data sets does not grow without end, and nothing in use goes."""

import os

from studio.data import kept
from studio.data.kept import MARK, note_use, sweep


def fill(cache, name, age_s, size=1000):
    folder = cache / name
    folder.mkdir(parents=True)
    (folder / "rows").write_bytes(b"x" * size)
    (folder / MARK).write_text("{}", encoding="utf-8")
    then = (folder / MARK).stat().st_mtime - age_s
    os.utime(folder / MARK, (then, then))
    return folder


def test_the_longest_unused_goes_first(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "KEPT_BYTES", 2500)
    old, older, new = (fill(tmp_path, name, age * 10**6) for name, age in (("b", 2), ("a", 3), ("c", 0)))
    assert sweep(tmp_path, new) >= 1000
    assert (old.exists(), older.exists(), new.exists()) == (True, False, True)


def test_what_is_used_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "KEPT_BYTES", 0)
    one, other = fill(tmp_path, "a", 10**6), fill(tmp_path, "b", 10**6)
    note_use(other)
    assert sweep(tmp_path, one) == 0 and one.exists() and other.exists()
    assert sweep(tmp_path, tmp_path / "c") > 0 and not one.exists() and other.exists()

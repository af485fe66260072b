"""The cache of data sets does not grow without end, and nothing in use goes."""

import os
import threading

import pytest

from studio.core.recipe import DatasetSpec
from studio.data import cache as kept
from studio.data.cache import MARK, hold, note_use, sweep
from studio.data.convert import convert
from studio.data.report_cache import name_report


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


def test_what_cannot_be_moved_stays_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "KEPT_BYTES", 0)
    mapped, other = fill(tmp_path, "a", 10**6), fill(tmp_path, "b", 10**6)
    move = os.replace

    def refuse(source, target):
        if source == mapped:
            raise PermissionError(13, "a file in it is mapped")
        move(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    sweep(tmp_path, tmp_path / "c")
    assert (mapped / MARK).exists() and (mapped / "rows").exists() and not other.exists()


def test_what_a_killed_process_left_goes(tmp_path):
    old, new = (tmp_path / f"{name}.part-1" for name in ("old", "new"))
    old.mkdir(), new.mkdir()
    os.utime(old, (1, 1))
    sweep(tmp_path, tmp_path / "c")
    assert (old.exists(), new.exists()) == (False, True)


def test_waiting_for_another_process_can_be_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "WAIT_S", 0.01)
    waits: list[int] = []

    def stop():
        waits.append(1)
        if len(waits) == 3:
            raise InterruptedError

    with hold(tmp_path / "a.lock", pytest.fail):
        with pytest.raises(InterruptedError), hold(tmp_path / "a.lock", stop):
            pass
    got = []

    def take():
        with hold(tmp_path / "a.lock", pytest.fail):
            got.append(1)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join(10)
    assert got


def test_a_report_is_not_that_of_other_templates(tmp_path):
    path, model, cache = tmp_path / "a.jsonl", tmp_path / "model", tmp_path / "cache"
    path.write_text('{"text": "one two"}\n', encoding="utf-8")
    (model / "additional_chat_templates").mkdir(parents=True)
    spec = DatasetSpec(source=str(path))
    convert(spec, cache)
    before = name_report(spec, cache, model, 3)
    assert before == name_report(spec, cache, model, 3)
    (model / "additional_chat_templates" / "tool_use.jinja").write_text("{{ messages }}", encoding="utf-8")
    assert before != name_report(spec, cache, model, 3)

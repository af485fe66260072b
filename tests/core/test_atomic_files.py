"""Small files that are replaced in one step: many writers at once, a full disk, who may read them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time

import pytest

from studio.core import atomic_files as files
from studio.core.atomic_files import write_file, write_json


def test_threads_that_write_one_file_never_mix_their_words(tmp_path):
    path, wrong = tmp_path / "run.json", []
    write_json(path, {"name": ""})

    def write(letter: str) -> None:
        for length in range(1, 60):
            try:
                write_json(path, {"name": letter * length * 50})
                json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                wrong.append(error)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and [each.name for each in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("lasting", [False, True])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, lasting):
    path = tmp_path / "queue.json"
    write_json(path, [1])

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync" if lasting else "replace", fail)
    with pytest.raises(OSError, match="space"):
        write_json(path, [2], lasting=lasting)
    assert path.read_text(encoding="utf-8") == "[\n 1\n]\n"
    assert [each.name for each in tmp_path.iterdir()] == ["queue.json"]


def test_half_an_emoji_costs_nothing_but_itself(tmp_path):
    write_json(tmp_path / "draft.json", {"name": "a\ud83d", "steps": 3})
    assert json.loads((tmp_path / "draft.json").read_text(encoding="utf-8")) == {"name": "a?", "steps": 3}


@pytest.mark.skipif(os.name == "nt", reason="only on POSIX: permissions")
def test_a_private_file_is_for_this_user_alone(tmp_path):
    before = os.umask(0)
    try:
        write_file(tmp_path / "key", b"x", private=True)
        write_file(tmp_path / "note", b"x")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("key", "note")]
    assert modes == [0o600, 0o666]


def test_a_log_is_cut_while_another_process_writes_it(tmp_path):
    path = tmp_path / "studio.log"
    words = "import sys, time\nfor i in range(300):\n print('x' * 99, flush=True)\n time.sleep(0.002)"
    with path.open("ab") as log:
        writer = subprocess.Popen([sys.executable, "-c", words], stdout=log)
        while writer.poll() is None:
            files.cut_log(log, path, 5_000)
            assert path.stat().st_size < 15_000
            time.sleep(0.01)
    kept = path.with_name("studio.log.1").read_bytes()
    assert 5_000 < len(kept) < 15_000 and set(kept) <= set(b"x\n")
    assert set(path.read_bytes()) <= set(b"x\n"), "no hole where it was cut"

"""Signs of life take each other's place in one file: nothing else is written, and a reader never meets half of one."""

from __future__ import annotations

import threading

from studio.core.heartbeat import Heartbeat, read_beat


def test_a_sign_of_life_takes_the_place_of_the_one_before(tmp_path):
    heart = Heartbeat(tmp_path / "heartbeat.json")
    heart.beat("r", tmp_path, "train", 1)
    first = heart.path.stat()
    for step in (2, 99_999, 3):
        heart.beat("r", tmp_path, "train", step)
        assert read_beat(heart.path).step == step
    assert (heart.path.stat().st_ino, heart.path.stat().st_size) == (first.st_ino, first.st_size)
    assert [path.name for path in tmp_path.iterdir()] == ["heartbeat.json"]


def test_a_longer_one_leaves_nothing_of_a_shorter_one_and_the_other_way_round(tmp_path):
    heart = Heartbeat(tmp_path / "heartbeat.json")
    for step, folder in enumerate(("short", "long" * 500, "short")):
        heart.beat("r", folder, "train", step)
        assert (read_beat(heart.path).folder, read_beat(heart.path).step) == (folder, step)


def test_a_file_that_was_taken_away_is_there_again(tmp_path):
    heart = Heartbeat(tmp_path / "heartbeat.json")
    heart.beat("r", tmp_path, "train", 1)
    heart.path.unlink()
    heart.beat("r", tmp_path, "train", 2)
    assert read_beat(heart.path).step == 2
    heart.clear()
    assert not heart.path.exists()
    heart.beat("r", tmp_path, "train", 2)
    assert read_beat(heart.path).step == 2


def test_a_reader_never_meets_half_of_one(tmp_path):
    heart = Heartbeat(tmp_path / "heartbeat.json")
    heart.beat("r", tmp_path, "train", 0)
    ended = threading.Event()

    def write() -> None:
        for step in range(1, 5000):
            heart.beat("r", tmp_path, "train", step)
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while not ended.is_set():
        seen.append(read_beat(heart.path))
    writer.join()
    assert None not in seen and [beat.step for beat in seen] == sorted(beat.step for beat in seen)

"""What the counter for data sets asks of studio.data: tokens as characters, lengths as cuts, all without a window."""

from __future__ import annotations

import numpy as np
import pytest

from studio.core.recipe import DatasetSpec, ModelChoice, Recipe
from studio.data.lengths import Lengths
from studio.services import dataset_report as report


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids, **options):
        return bytes(ids).decode("utf-8", "replace")


def tokens_of(words: str) -> list[dict]:
    return [
        {"id": one, "text": bytes([one]).decode("utf-8", "replace"), "trained": True}
        for one in words.encode()
    ]


@pytest.mark.parametrize("words", ["5 € für 中文", "plain", "€"])
def test_characters_of_several_tokens_are_shown_whole(words):
    tokens = tokens_of(words)
    report.join_characters(tokens, Bytes())
    assert "".join(token["text"] for token in tokens) == words
    assert len(tokens) == len(words.encode())


def test_a_byte_that_is_no_character_stays_what_it_is():
    tokens = [{"id": 0xFF, "text": "\ufffd", "trained": True}]
    report.join_characters(tokens, Bytes())
    assert tokens[0]["text"] == "\ufffd"


def make_lengths(full: np.ndarray) -> Lengths:
    """Return lengths of rows whose second half is learned."""
    return Lengths(full, full // 2, full, full - full // 2)


def test_cuts_are_exact_at_every_limit_the_line_can_stand_at():
    full = np.arange(1, 1001, dtype=np.int64)
    cuts = report.list_cuts(make_lengths(full), 512)
    limits = [cut.limit_tokens for cut in cuts]
    assert limits == sorted(set(limits)) and limits[0] == 8 and limits[-1] >= 1000 and 512 in limits
    for cut in cuts:
        assert cut.rows_cut == int((full > cut.limit_tokens).sum())
        assert cut.tokens_lost == int(np.maximum(full - cut.limit_tokens, 0).sum())
        assert cut.rows_left_out == int((full // 2 >= cut.limit_tokens).sum())
    assert cuts[-1].packing is not None
    measured = report.MeasuredData(report={}, cuts=cuts, lengths=make_lengths(full))
    assert report.cut_at(measured, 333).rows_cut == 667
    assert report.cut_at(report.MeasuredData(report={}), 333) is None


def test_a_histogram_counts_every_row_once():
    full = np.sort(np.random.default_rng(0).integers(1, 60_000, 5000))
    found = report.make_histogram(full)
    assert sum(found["counts"]) == 5000 and len(found["edges"]) == len(found["counts"]) + 1
    assert found["max"] == full[-1] and found["p50"] <= found["p95"] <= found["max"]
    assert report.make_histogram(full[:0]) == {}


def test_roles_of_a_format_and_of_all():
    assert "completion" in report.list_roles("prompt_completion")
    assert set(report.list_roles("alpaca")) < set(report.list_roles("auto"))


def test_work_that_is_called_off_ends_as_the_counter_expects(workspace, tmp_path):
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"prompt": "a", "completion": "b"}\n' * 50, encoding="utf-8")
    recipe = Recipe(model=ModelChoice(source=""), data=DatasetSpec(source=str(file)))
    with pytest.raises(report.Stopped):
        report.measure(recipe, workspace, lambda done, total: None, lambda: True)
    measured = report.measure(recipe, workspace, lambda done, total: None, lambda: False)
    assert measured.report["rows_read"] == 50 and measured.cuts == () and measured.quarantine is None
    head = report.look_at_head(recipe, workspace, tokens=True)
    assert head["format"] == "prompt_completion" and len(head["rows"]) == report.HEAD_ROWS

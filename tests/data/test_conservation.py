"""The law over generated and damaged files of all text containers: nothing is lost, from file to packed rows."""

import csv
import gzip
import io
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec
from studio.data.dataset_report import describe
from studio.data.prepare import prepare
from studio.data.problems import is_refused
from tests.each_time import some

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
ROWS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=30)
WOUNDS = ("cut", "insert", "null", "drop", "bytes", "repeat")
DAMAGE = st.lists(
    st.tuples(st.sampled_from(WOUNDS), st.integers(0, 10**6), st.binary(max_size=4)), max_size=4
)
CONTAINERS = ("jsonl", "jsonl.gz", "json", "csv", "tsv", "txt", "md")


def write(kind: str, rows: list[tuple[str, str]]) -> bytes:
    """Return the bytes of a file of this kind that holds `rows`."""
    objects = [{"prompt": prompt, "completion": completion} for prompt, completion in rows]
    if kind.startswith("jsonl"):
        return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in objects).encode("utf-8")
    if kind == "json":
        return json.dumps(objects, ensure_ascii=False, indent=1).encode("utf-8")
    if kind in ("csv", "tsv"):
        out = io.StringIO()
        writer = csv.writer(out, delimiter="," if kind == "csv" else "\t", lineterminator="\n")
        writer.writerows([("prompt", "completion"), *rows])
        return out.getvalue().encode("utf-8")
    return "\n\n".join(f"{prompt} {completion}" for prompt, completion in rows).encode("utf-8")


def damage(data: bytes, wounds: list[tuple[str, int, bytes]]) -> bytes:
    """Return `data` with bytes missing, added or repeated."""
    for kind, place, more in wounds:
        place %= len(data) + 1
        if kind == "cut":
            data = data[:place] + data[place + 3 :]
        elif kind == "insert":
            data = data[:place] + b'\n{"prompt": ' + data[place:]
        elif kind == "null":
            data = data[:place] + b"null" + data[place:]
        elif kind == "drop":
            data = data[:place] + data[place:].partition(b"\n")[2]
        elif kind == "bytes":
            data = data[:place] + more + data[place:]
        else:
            data = data + data[place:]
    return data


@pytest.mark.parametrize("kind", some(CONTAINERS, "csv"))
@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(
    rows=ROWS, wounds=DAMAGE, limit=st.integers(8, 120), too_long=st.sampled_from(("cut", "drop", "split"))
)
@example(rows=[("0", "{A00}")], wounds=[], limit=8, too_long="cut")  # a note, on a row that is used
def test_law(tokenizer_of, kind, rows, wounds, limit, too_long):
    tokenizer = tokenizer_of("chatml")
    data = damage(write(kind, rows), wounds)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder) / f"rows.{kind}"
        path.write_bytes(gzip.compress(data) if kind.endswith("gz") else data)
        spec = DatasetSpec(
            source=str(path), max_length=limit, too_long=too_long, accept_bad_rows=True, encoding="utf-8"
        )
        cache = Path(folder) / "cache"
        try:
            found = describe(spec, tokenizer=tokenizer, cache=cache, rows=1000)
        except StudioError:
            return  # the file as a whole is refused, by name
        quarantined, filtered = found["rows_quarantined"], sum(found["rows_filtered"].values())
        assert found["rows_read"] == found["rows_used"] + quarantined + filtered
        assert quarantined == sum(p["count"] for p in found["problems"] if is_refused(p["code"]))
        if not found["rows_used"] or found["needs_answer"]:
            return
        check_training(spec, tokenizer, cache, found)


def check_training(spec, tokenizer, cache, found):
    """What a run gets is what was shown, also after packing by trl."""
    import dataclasses

    loose = prepare(spec, "auto", tokenizer, seed=3, cache=cache)
    facts = loose.facts
    assert facts.rows_read == facts.rows_used + facts.rows_refused + sum(facts.rows_dropped.values())
    assert (facts.rows_used, facts.rows_refused) == (found["rows_used"], found["rows_quarantined"])
    assert facts.trained_tokens == sum(int(one.trained.sum()) for one in loose.train)
    if loose.method != "sft":
        return
    shown = [[t["trained"] for t in one["tokens"]] for one in found["preview"]]
    if spec.too_long != "split":
        assert sum(map(sum, shown)) == facts.trained_tokens
    packed = prepare(dataclasses.replace(spec, packing=True), "auto", tokenizer, seed=3, cache=cache)
    assert sum(len(row.lengths) for row in packed.train) == len(loose.train)
    assert collect(packed.train) == collect(loose.train)


def collect(examples):
    """Return all documents of `examples` with their masks, in no order."""
    documents = []
    for one in examples:
        edges = np.cumsum((0, *one.lengths))
        for start, stop in zip(edges, edges[1:], strict=False):
            documents.append((one.token_ids[start:stop].tolist(), one.trained[start:stop].tolist()))
    return sorted(documents)

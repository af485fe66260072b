"""Translation memories: a unit is a row with a column for each language."""

import pytest

from studio.core.errors import StudioError
from studio.core.recipe import DatasetSpec
from studio.data.dataset_report import describe
from studio.data.source import open_source

HEAD = '<?xml version="1.0" encoding="{encoding}"?>\n{extra}<tmx version="1.4"><header srclang="en"/><body>\n'
UNIT = (
    '<tu tuid="{n}"><tuv xml:lang="en"><seg>The quay <bpt i="1">&lt;b&gt;</bpt>of Brenn<ept i="1"/> has {n} '
    'berths.</seg></tuv><tuv xml:lang="de"><seg>Der Kai von Brenn hat {n} Plätze.</seg></tuv></tu>\n'
)


@pytest.fixture
def write(tmp_path):
    """A function: encoding, what stands before the root, the units -> the path of a memory."""

    def run(encoding="utf-8", extra="", units=12, end="</body></tmx>"):
        words = (
            HEAD.format(encoding=encoding, extra=extra)
            + "".join(UNIT.format(n=n) for n in range(units))
            + end
        )
        path = tmp_path / "memory.tmx"
        path.write_bytes(words.encode(encoding))
        return path

    return run


@pytest.mark.parametrize("encoding", ("utf-8", "utf-16"))
def test_each_unit_is_a_row_without_the_codes_of_its_formatting(write, encoding):
    rows = [*open_source(DatasetSpec(source=str(write(encoding)))).splits["train"][0].rows()]
    assert len(rows) == 12
    assert rows[3].values == {
        "en": "The quay of Brenn has 3 berths.",
        "de": "Der Kai von Brenn hat 3 Plätze.",
    }


def test_which_way_is_translated_is_asked(write):
    report = describe(DatasetSpec(source=str(write())))
    assert {one["field"] for one in report["needs_answer"]} == {
        "data.mapping.prompt",
        "data.mapping.completion",
    }


@pytest.mark.parametrize(
    ("extra", "end"),
    (
        ("", "</body>"),
        ('<!DOCTYPE tmx [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>\n', "</body></tmx>"),
    ),
)
def test_a_damaged_memory_and_one_with_entities_are_refused(write, extra, end):
    with pytest.raises(StudioError) as refused:
        describe(DatasetSpec(source=str(write(extra=extra, end=end))))
    assert refused.value.why.id == "data.source.memory_broken"


def test_a_memory_with_the_usual_doctype_is_read(write):
    path = write(extra='<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n')
    assert describe(DatasetSpec(source=str(path)))["rows_read"] == 12

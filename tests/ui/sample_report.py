"""A data set as the desk tells of it, with everything in it that a screen can stumble over; no file is read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.services.dataset_report import Counted, Cut, MeasuredData, list_roles

EVIL = '<img src=x onerror="window.caught=1"><script>window.caught=1</script>[x](javascript:alert(1)) ${1} {{value}}'
HOSTILE = {
    "script": EVIL,
    "nul": "before\0after\ud800",
    "turned": "abc\u202egnp.exe",
    "arabic": "مرحبا بالعالم",
    "long": "x" * 100_000,
    "empty": "",
}
"""Cells that must arrive as text."""


def token(words: str, trained: bool) -> dict:
    """Return one token as a report has it."""
    return {"id": 0, "text": words, "trained": trained}


def make_example(count: int = 6) -> dict:
    """Return one example with a system prompt, reasoning, a tool call, and `count` answer tokens."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"What is it?  {EVIL}"},
        {
            "role": "assistant",
            "content": "A lamp.",
            "reasoning_content": "I look <b>closely</b>.",
            "tool_calls": [
                {"type": "function", "id": "1", "function": {"name": "look", "arguments": {"at": "<lamp>"}}}
            ],
        },
        {"role": "tool", "content": '{"found": true}', "name": "look"},
    ]
    tokens = [
        token("<|im_start|>", False),
        token("user\n", False),
        token(EVIL, False),
        token("<|im_end|>", False),
    ]
    tokens += [token(f" word{i}", True) for i in range(count)] + [token("<|im_end|>", True)]
    return {"line": 3, "messages": messages, "text": "".join(one["text"] for one in tokens), "tokens": tokens}


def make_report(**changes: object) -> dict:
    """Return the report of a head, in the shape of `launch.py data --json` and what a screen needs besides."""
    columns = ("instruction", "output", *HOSTILE)
    row = {"instruction": EVIL, "output": "fine", **HOSTILE}
    report = {
        "source": "/data/chats.csv",
        "container": "csv",
        "encoding": "cp1252",
        "format": "alpaca",
        "confidence": 0.93,
        "reason": literal(f"The columns say so {EVIL}"),
        "mapping": {"instruction": "instruction", "output": "output"},
        "needs_answer": [],
        "refusal": None,
        "columns": columns,
        "rows": tuple(dict(row) for _ in range(4)),
        "roles": list_roles("alpaca"),
        "specials": ("<|im_start|>", "<|im_end|>"),
        "problems": [
            {"code": "E122", "line": 5, "row": 4, "count": 1, "message": literal(f"Line 5: {EVIL}")},
            {"code": "E122", "line": 9, "row": 8, "count": 1, "message": literal("Line 9: empty")},
            {"code": "E122", "count": 98, "message": literal("more")},
            {"code": "E190", "line": 7, "row": 6, "count": 1, "message": literal("Line 7: seen before")},
        ],
        "preview": [make_example(), make_example(5000)],
    }
    return report | changes


WHOLE = {
    "rows_read": 1200,
    "rows_used": 1090,
    "rows_quarantined": 100,
    "rows_filtered": {"answer_beyond_max_length": 10},
    "size_bytes": 3_500_000,
}


def make_cut(limit: int) -> Cut:
    """Return what a limit does to rows whose lengths are spread evenly from 1 to 1000 tokens."""
    cut = max(0, 1000 - limit)
    return Cut(
        limit_tokens=limit,
        rows_cut=cut,
        answers_cut=cut,
        rows_left_out=cut // 2,
        tokens_lost=cut * (cut + 1) // 2,
        tokens=500_500,
        packing=0.9,
    )


def make_measured(quarantine: Path | None = None) -> MeasuredData:
    """Return what was found over all rows."""
    limits = range(8, 2049, 8)
    edges = [2 ** (3 + i / 2) for i in range(16)]
    histogram = {"edges": [round(edge) for edge in edges], "counts": [i * 3 for i in range(15)]}
    return MeasuredData(
        report=WHOLE,
        histogram=histogram | {"p50": 500, "p95": 950, "max": 1000},
        cuts=tuple(make_cut(limit) for limit in limits),
        quarantine=quarantine,
    )


class Stopped(Exception):
    """The work was called off."""


class FakeTools:
    """Answers like studio.services.dataset_report; `gate` set lets measure() go on, `asked` lists what was done."""

    Stopped = Stopped

    def __init__(self, report: dict | None = None) -> None:
        self.report = report or make_report()
        self.asked: list[str] = []
        self.gate = SimpleNamespace(wait=lambda stop: None)
        self.error: StudioError | None = None
        self.fetched = False
        self.quarantine: Path | None = None
        self.refusal: StudioError | None = None
        """What a run says of the rows until the broken ones are accepted."""

    def look_at_head(self, recipe, workspace, *, tokens):
        self.asked.append("tokens" if tokens else "head")
        if self.error:
            raise self.error
        preview = (
            self.report["preview"] if tokens else [dict(one, tokens=[]) for one in self.report["preview"]]
        )
        return self.report | {
            "preview": preview,
            "mapping": {**self.report["mapping"], **recipe.data.mapping},
        }

    def measure(self, recipe, workspace, on_progress, should_stop):
        self.asked.append("measure")
        on_progress(1, 4)
        self.gate.wait(should_stop)
        if should_stop():
            raise Stopped
        return make_measured(self.quarantine)

    def is_remote(self, spec, workspace):
        return spec.source.startswith("https://") and not self.fetched

    def ask_size(self, spec, workspace):
        self.asked.append("size")
        return 5_000_000, []

    def fetch(self, recipe, workspace, on_progress, should_stop):
        self.asked.append("fetch")
        self.fetched = True

    def save_mapping(self, spec, report, workspace):
        self.asked.append("save")
        return Path("/data/chats.csv.mapping.json")

    def list_roles(self, format):
        return list_roles(format)

    def cut_at(self, measured, limit):
        return make_cut(limit)

    def count_rows(self, measured, spec):
        report = measured.report
        return Counted(
            rows_read=report["rows_read"],
            rows_used=report["rows_used"],
            rows_refused=report["rows_quarantined"],
            filtered=report["rows_filtered"],
            tokens=204_800,
            refusal=None if spec.accept_bad_rows else self.refusal,
        )


def make_question(field: str = "data.encoding", *choices: str) -> dict:
    """Return one open question."""
    return {
        "id": field,
        "question": text("ui.dataset.question"),
        "choices": list(choices or ("cp1252", "utf-8")),
        "field": field,
    }

"""Error texts as people paste them, in tests/machine/recorded: a file a group, each text below `#### ID title`."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "recorded"


def read_texts(group: str) -> list[tuple[str, str]]:
    """Return (head, text) of one file; the head is what stands behind the four signs."""
    words = (FOLDER / f"{group}.txt").read_text(encoding="utf-8")
    parts = [part.partition("\n") for part in words.split("#### ")[1:]]
    return [(head.strip(), text) for head, _, text in parts]


def failures() -> list[tuple[str, str]]:
    """Return (id, text) of every text that has a cause."""
    groups = sorted(path.stem for path in FOLDER.glob("*.txt"))
    return [
        (head.split()[0], text)
        for group in groups
        if group not in ("harmless", "unknown")
        for head, text in read_texts(group)
    ]

"""Sizes, counts and times as a person reads them."""

from __future__ import annotations


def size_words(size_bytes: float) -> str:
    """Return a size in the unit that fits: `14.2 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024 or unit == "GiB":
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return ""


def count_words(count: int) -> str:
    """Return a large number in short: `7.5 M`, `8.0 B`."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= limit:
            return f"{count / limit:.1f} {unit}"
    return str(count)


def time_words(seconds: float) -> str:
    """Return a duration as m:ss or h:mm:ss; 0:00 for none (a clock that was set back, NaN)."""
    minutes, rest = divmod(int(seconds) if 0 <= seconds < 1e12 else 0, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

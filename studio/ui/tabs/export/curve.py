"""What a measured file takes against what it loses, drawn; a point of it is picked, and a file of its size written."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from studio.services.export_source import Curve
from studio.ui.cards import Say
from studio.ui.quantities import size_words
from studio.ui.templates import render

POINTS = 17
"""That can be picked: so many can be told apart and hit."""
APART = 0.7
"""Of the mean distance, at least between two."""
WIDTH, HEIGHT = 600, 200
"""Of the drawing, in its own units."""


def choose_points(curve: Curve) -> list[tuple[int, float]]:
    """Return the points that can be picked, evenly spread over the sizes, the smallest file first.

    The one of Q4_K_M's size is among them: the largest file that takes no more.
    """
    points, usual = sorted(curve.points), usual_point(curve)
    least, most = points[0][0], points[-1][0]
    step = (most - least) / (POINTS - 1)
    found: list[tuple[int, float]] = []
    for one in sorted(
        {max(one for one in points if one[0] <= least + step * i) for i in range(POINTS)} | {usual}
    ):
        if found and one[0] - found[-1][0] < APART * step:  # they would lie on one another
            if one != usual:
                continue
            found.pop()
        found.append(one)
    return found


def usual_point(curve: Curve) -> tuple[int, float]:
    """Return the point that is written where nobody picks one: the size of Q4_K_M."""
    fitting = [one for one in curve.points if one[0] <= curve.usual_bytes]
    return max(fitting or [min(curve.points)])


def curve_card(curve: Curve, say: Say, *, picked: int = 0, busy: bool = False) -> Markup:
    """Return the drawing; `picked`: bytes of the point that is chosen, 0 for the usual one."""
    points = choose_points(curve)
    at = min(points, key=lambda one: abs(one[0] - (picked or usual_point(curve)[0])))
    places = place_points(points)
    shown = [
        {
            "x": f"{x:.4f}", "y": f"{y:.4f}", "bytes": size, "picked": (size, kl) == at,
            "words": say("ui.curve.point", size=size_words(size), kl=f"{kl:.2g}"),
        }
        for (size, kl), (x, y) in zip(points, places, strict=True)
    ]  # fmt: skip
    line = " ".join(f"{x * WIDTH:.1f},{y * HEIGHT:.1f}" for x, y in places)
    ends = [size_words(points[0][0]), size_words(points[-1][0])]
    losses = [f"{max(kl for _, kl in points):.2g}", f"{min(kl for _, kl in points):.2g}"]
    more = f"{100 * math.expm1(at[1]):.2g}"
    return render(
        "tabs/export/curve.html", say, points=shown, line=line, width=WIDTH, height=HEIGHT, ends=ends, losses=losses,
        chosen=at[0], told=say("ui.curve.chosen", size=size_words(at[0]), kl=f"{at[1]:.2g}", more=more), busy=busy,
    )  # fmt: skip


def place_points(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Return (x, y) of each point from 0 to 1, size to the right; loss upwards, as y runs down, by its logarithm."""
    logs = [math.log(max(kl, 1e-7)) for _, kl in points]
    sizes = [size for size, _ in points]
    wide, high = (max(sizes) - min(sizes)) or 1, (max(logs) - min(logs)) or 1.0
    return [
        ((size - min(sizes)) / wide, (max(logs) - log) / high) for size, log in zip(sizes, logs, strict=True)
    ]

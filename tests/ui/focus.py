"""Where the focus of a page is: what shows it, whether its ring is cut, and whether its way follows the screen."""

from __future__ import annotations

from typing import Any

STOP = """() => {
  const part = document.activeElement;
  if (!part || part === document.body) return null;
  const places = ["dialog", "#run-card", "#header", "#share-banner", ".second-window", "#tabs > .tab-wrapper"];
  const place = places.find((one) => part.closest(one)) || "screen";
  const root = place === "screen" ? part.closest("#tabs > .tabitem") || document.body : part.closest(place);
  const rings = (style) => style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
  // A radio button that is not drawn itself shows the focus at its label.
  const shown = getComputedStyle(part).opacity === "0" ? part.closest("label") || part : part;
  const style = getComputedStyle(shown);
  const box = shown.getBoundingClientRect();
  const base = root.getBoundingClientRect();
  const reach = rings(style) ? parseFloat(style.outlineWidth) + parseFloat(style.outlineOffset) : 0;
  const cut = [];
  for (let one = shown.parentElement; one && one !== document.body; one = one.parentElement) {
    const { overflowX, overflowY, display } = getComputedStyle(one);
    if (display === "contents") continue;
    const edge = one.getBoundingClientRect();
    const wide = box.left - reach < edge.left - .5 || box.right + reach > edge.right + .5;
    const high = box.top - reach < edge.top - .5 || box.bottom + reach > edge.bottom + .5;
    if ((overflowX !== "visible" && wide) || (overflowY !== "visible" && high)) cut.push(one.id || one.className);
  }
  const named = part.id || `${part.closest("[id]")?.id} ${part.dataset.focus || part.name || part.className}`;
  return {
    name: `${part.tagName.toLowerCase()} ${named}`, place, cut,
    ring: rings(style) || style.boxShadow !== "none",
    seen: box.width > 2 && box.height > 2 && box.bottom > 0 && box.top < innerHeight
      && box.right > 0 && box.left < innerWidth,
    left: box.left - base.left, top: box.top - base.top, right: box.right - base.left, bottom: box.bottom - base.top,
  };
}"""
"""The place of the focus, None where nothing has it; measured from its part of the page, which may be a sticky one."""


def stop_of(page) -> dict[str, Any] | None:
    """Return what has the focus, None when nothing has."""
    return page.evaluate(STOP)


def faults(stop: dict[str, Any], before: dict[str, Any] | None) -> list[str]:
    """Return what is wrong with the focus being here, after it was at `before`."""
    wrong = []
    if not stop["ring"]:
        wrong.append("shows no focus")
    if not stop["seen"]:
        wrong.append("is not on the screen")
    if stop["cut"]:
        wrong.append(f"its ring is cut by {stop['cut']}")
    if before is not None and before["place"] == stop["place"]:
        above = stop["bottom"] <= before["top"] + 1 and stop["left"] < before["right"] - 1
        left = stop["right"] <= before["left"] + 1 and stop["bottom"] <= before["bottom"] + 1
        if above or left:
            wrong.append(f"stands before {before['name']}, which came first")
    return [f"{stop['name']} {words}" for words in wrong]


def walk(page, name: str, most: int = 120) -> list[str]:
    """Go through a tab by the Tab key alone; return what is wrong with its stops."""
    page.focus(f"#tab-{name}-button")
    wrong: list[str] = []
    before = first = stop_of(page)
    visited = set()
    for _ in range(most):
        page.keyboard.press("Tab")
        stop = stop_of(page)
        if stop is None:  # the end of the page; Gradio's drop-downs let go of the focus for one press, too
            continue
        key = (stop["name"], round(stop["left"]), round(stop["top"]))
        if stop["name"] == first["name"] or key in visited:
            return wrong
        visited.add(key)
        wrong += faults(stop, before)
        before = stop
    return [*wrong, f"{name}: no end after {most} presses"]


def tab_to(page, place: str, most: int = 90) -> None:
    """Press Tab until what `place` names has the focus; each stop on the way shows it, in the order of the screen."""
    before = stop_of(page)
    passed = []
    for _ in range(most):
        page.keyboard.press("Tab")
        stop = stop_of(page)
        if stop is None:
            continue
        wrong = faults(stop, before)
        assert not wrong, wrong
        before = stop
        passed.append(stop["name"])
        if page.evaluate("(place) => document.activeElement.matches(place)", place):
            return
    raise AssertionError(f"{place} is not reached by Tab, but {passed}")

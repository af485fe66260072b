"""The card beside the four tabs of a run: what is set, whether it fits, how long it takes, what comes next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import gradio as gr

from studio.core.errors import Problem, RecipeError
from studio.core.recipe import Recipe
from studio.ui.cards import soft_line
from studio.ui.context import Context
from studio.ui.estimate_card.view import run_card
from studio.ui.form import Form
from studio.ui.shell.scripts import read_script


class RunCard:
    """Components and handlers; drawn anew whenever the form changes."""

    def __init__(self, context: Context, form: Form) -> None:
        self.context = context
        self.form = form
        waiting = context.say("ui.card.waiting")  # a machine is examined for seconds, the first time
        self.body = gr.HTML(
            soft_line(waiting),
            js_on_load=read_script("estimate_card/script.js"),
            elem_id="run-card-body",
        )

    def bind(self, page_load: Callable, tabs: Sequence[gr.Tab], *known: Callable) -> None:
        """Draw on page load, when one of the run's `tabs` is opened, and on every change of the form.

        `known`: events by which more is known of the draft than its fields say: of its data, of its rewards.

        While one drawing is at work, of all further changes only the last one is drawn.
        """
        on, components = self.context.on, list(self.form.components.values())
        on(page_load, self.draw_draft, [], [self.body])
        for tab in tabs:
            on(tab.select, self.draw_draft, [], [self.body])
        on(partial(gr.on, [*known]), self.draw_known, [], [self.body], trigger_mode="always_last")
        changes = [component.change for component in components]
        on(
            lambda *args, **options: gr.on(changes, *args, **options),
            self.draw,
            components,
            [self.body],
            trigger_mode="always_last",
        )

    def draw_draft(self) -> Iterator[str]:
        """Yield the card of the recipe as the server keeps it, everything looked at anew: files may have changed."""
        yield from self._draw(self.context.draft(), fresh=True)

    def draw_known(self) -> Iterator[str]:
        """Yield the card of the recipe as the server keeps it, with what is known of its rows by now."""
        yield from self._draw(self.context.draft())

    def draw(self, *values: Any) -> Iterator[str]:
        """Yield the card of the form: what arithmetic tells at once, then with what the check finds."""
        try:
            recipe = self.form.read(values, self.context.draft().rewards)
        except RecipeError as error:
            yield self._card(self.context.draft(), error.problems)
            return
        yield from self._draw(recipe)

    def _draw(self, recipe: Recipe, *, fresh: bool = False) -> Iterator[str]:
        fits = self.context.desk.models
        estimate = fits.judge(recipe)
        if estimate.checks is None or fresh:
            yield run_card(estimate, estimate.checks, self.context.say)
            estimate = fits.examine(recipe, fresh=fresh)
        yield run_card(estimate, estimate.checks, self.context.say)

    def _card(self, recipe: Recipe, problems: tuple[Problem, ...]) -> str:
        return run_card(self.context.desk.models.judge(recipe), problems, self.context.say)

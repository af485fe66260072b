"""Refusals travel between processes whole."""

import pickle

from studio.core.errors import Problem, RecipeError, StudioError
from studio.core.i18n import text


def test_a_refusal_travels():
    sent = StudioError(text("disk.full", folder="x"), text("disk.full.why"), text("disk.full.fix"), 1)
    found = pickle.loads(pickle.dumps(sent))
    assert (found.what, found.why, found.fix, found.exit_code) == (sent.what, sent.why, sent.fix, 1)


def test_a_refused_recipe_travels():
    problem = Problem(field="a.b", message=text("disk.full", folder="x"), fix=text("disk.full.fix"))
    assert pickle.loads(pickle.dumps(RecipeError((problem,)))).problems == (problem,)

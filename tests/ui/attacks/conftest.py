"""A launched and shared studio that is attacked, and the ways into it."""

from __future__ import annotations

import pytest

from tests.shared_studio import share_studio
from tests.ui.attacks.attack import (
    Tried,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A studio for the attacks of a file."""
    with share_studio(tmp_path_factory.mktemp("shared")) as studio:
        yield studio


@pytest.fixture(scope="module")
def tried():
    """The attacks of a file."""
    return Tried()


@pytest.fixture
def judge(tried):
    """A function `judge(kind, what, held)` that counts one attack; none may have got through at the end."""
    yield tried
    fell = tried.fell.copy()
    tried.fell.clear()
    assert not fell, "\n" + "\n".join(fell)


@pytest.fixture(scope="module")
def ways(shared):
    """Every way in: a name, a browser without any right, and one that came in there."""
    local = shared.local()
    found = [("window", local.stranger(), local)]
    for role in ("viewer", "owner"):
        for way in ("direct", "relayed"):
            inside = getattr(shared, way)(role).enter(shared.told(role)[1])
            found.append((f"{role} {way}", inside.stranger(), inside))
    return found


@pytest.fixture(scope="module")
def guests(ways):
    """The two guests: at this machine and by the link."""
    return [inside for name, _, inside in ways if name.startswith("viewer")]

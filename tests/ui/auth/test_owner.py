"""The cookie of the owner at this machine: signed, dated by a clock that nobody sets, valid over a restart."""

from __future__ import annotations

import time

import pytest

from studio.ui.auth.owner import SESSION_S, Keys


def test_cookies_are_signed_dated_and_survive_a_restart(keys, workspace):
    cookie = keys.redeem(keys.url.partition("token=")[2])
    name = keys.cookie_name
    assert keys.identify({name: cookie})
    assert Keys(workspace.root, 7999).identify({name: cookie})
    body, _, signature = cookie.rpartition(".")
    old = keys._sign(f"{int(time.time()) - SESSION_S - 5}.a")
    for forged in ("", "x", body, f"{body}.{'0' * 64}", f"9{body}.{signature}", old, "²." + cookie, "1.ä.ö"):
        assert not keys.identify({name: forged}), forged
    assert not keys.identify({})


@pytest.mark.parametrize("jump_s", [-10 * SESSION_S, -3600, 3600, 10 * SESSION_S])
def test_a_clock_that_is_set_puts_out_no_open_page_and_keeps_none_for_longer(workspace, monkeypatch, jump_s):
    steady = [5.0]
    keys = Keys(workspace.root, 7999, lambda: steady[0])
    open_page = {keys.cookie_name: keys.redeem(keys.url.partition("token=")[2])}
    assert keys.identify(open_page)
    before = time.time()
    monkeypatch.setattr(time, "time", lambda: before + jump_s)
    assert keys.identify(open_page)
    assert bool(Keys(workspace.root, 7999).identify(open_page)) == (abs(jump_s) < SESSION_S), (
        "after a restart, a week"
    )
    steady[0] += SESSION_S + 5
    assert not keys.identify(open_page)

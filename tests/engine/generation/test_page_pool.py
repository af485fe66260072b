"""Pages: counted, found again by their tokens, given up one by one when room is needed."""

from __future__ import annotations

from studio.engine.generation.page_pool import PagePool
from studio.models.decoder.cached_rows import PAGE_TOKENS, find_runs

TALK = list(range(1000, 1000 + 3 * PAGE_TOKENS))


def test_a_prefix_is_found_page_by_page_and_one_token_is_left():
    pool = PagePool(8)
    pages = pool.take(3)
    pool.keep("tuned", TALK, pages)
    assert pool.find("tuned", [*TALK, 1]) == pages
    assert pool.find("tuned", TALK) == pages[:2], "the last token's row is what the next one is drawn from"
    assert pool.find("tuned", [*TALK[:PAGE_TOKENS], *[7] * 90]) == pages[:1]
    assert pool.find("base", [*TALK, 1]) == [] == pool.find("tuned", [1, *TALK])
    pool.forget_all()
    assert pool.find("tuned", [*TALK, 1]) == []


def test_what_is_in_use_stays_and_what_is_idle_goes_last_page_first():
    pool = PagePool(4)
    chain = pool.take(3)
    pool.keep("tuned", TALK, chain)
    shared = pool.find("tuned", TALK[: PAGE_TOKENS + 1])
    pool.use(shared)
    pool.release(chain)
    assert pool.room == 3 and pool.take(4) is None
    taken = pool.take(2)
    assert chain[2] in taken and pool.find("tuned", [*TALK, 1]) == chain[:2]
    assert pool.take(1) == [chain[1]] and pool.find("tuned", [*TALK, 1]) == chain[:1]
    pool.release(taken)
    assert pool.room == 2
    pool.release(shared)
    assert pool.room == 3


def test_neighbours_are_one_run():
    pool = PagePool(10)
    first, second = pool.take(2), pool.take(3)
    assert pool.take(2, after=second[-1]) == [5, 6]
    pool.release(first)
    assert pool.take(3) == [7, 8, 9], "a run of neighbours before the first free pages"
    assert find_runs([2, 3, 7], 150) == ((128, 256), (448, 470))

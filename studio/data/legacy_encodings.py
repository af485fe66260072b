"""Guess the encoding of text that is no Unicode, by what its bytes would mean in each."""

from __future__ import annotations

import re
from collections.abc import Callable

from studio.core.packages import import_package

CODECS = {"big5": "cp950", "shift_jis": "cp932", "euc_kr": "cp949"}
"""Windows writes these under the older name; each holds all letters of the older one."""
HIGH_PAIR = re.compile(rb"[\x81-\xfe][\x30-\xfe]")
HIGH_RUN = re.compile(rb"(?:[\x81-\xfe][\x30-\xfe])+")
SCATTERED = 0.4
LATIN = re.compile("[^\x00-\x7f]")
LATIN_LETTERS = frozenset("äöüßÄÖÜéèêëàâáãåæçíìîïñóòôõøœúùûÿÉÈÊÀÁÂÃÅÆÇÍÑÓÔÕØŒÚ")
LATIN_SIGNS = frozenset("“”‘’„‚–—…€£§«»©®°·¿¡ºª½²³´×™•\xa0")
GB_SYMBOLS, GB_COMMON, GB_RARE = range(0xA1, 0xA4), range(0xB0, 0xD8), range(0xD8, 0xF8)
KOREAN = range(0xB0, 0xC9)
ENOUGH = 12
"""Pairs of bytes from which on their distribution tells Korean from Chinese."""
DECIDED, LEAD, MANY = 0.97, 0.25, 100
"""Of a score of 1, so much has what is beyond doubt, and so far it is ahead of the second; in so many letters."""
HUNGARIAN = frozenset("õû")
"""What its letters with two strokes are read as."""


def rank_encodings(sample: bytes) -> tuple[tuple[str, float], ...]:
    """Return (encoding, score 0..1) for each encoding that can read all of `sample`, the likeliest first.

    sample: whole lines that hold bytes beyond ASCII. Where no score says anything, charset-normalizer is asked.
    """
    scores = {}
    for encoding, score in SCORES.items():
        try:
            words = sample.decode(CODECS.get(encoding, encoding))
        except UnicodeDecodeError:
            continue
        scores[encoding] = score(sample, words)
    if scores and max(scores.values()) < 0.4:
        from_bytes = import_package("charset_normalizer", "charset-normalizer").from_bytes
        names = {CODECS.get(encoding, encoding): encoding for encoding in scores}
        best = from_bytes(sample, cp_isolation=list(names)).best()
        if best is not None and best.encoding in names:
            scores[names[best.encoding]] += 0.4
    return tuple(sorted(scores.items(), key=lambda one: -one[1]))


def decide_encoding(sample: bytes) -> str:
    """Return the encoding in which all of `sample` is written as its language is, and no other nearly so; "" for none.

    Hungarian, whose own encoding is not among those that are known, reads in cp1252 but for two letters.
    """
    order = rank_encodings(sample)
    best, *others = order or (("", 0.0),)
    lead = best[1] - max((score for _, score in others), default=0.0)
    if best[1] < DECIDED or lead < LEAD:
        return ""
    words = sample.decode(CODECS.get(best[0], best[0]))
    odd = HUNGARIAN <= {*words} and best[0] == "cp1252"
    return "" if odd or len(LATIN.findall(words)) < MANY else best[0]


def is_plausible(sample: bytes) -> bool:
    """Return whether the bytes beyond ASCII in `sample` are letters or signs in some encoding, rather than damage."""
    return any(score >= 0.5 for _, score in rank_encodings(sample))


def _score_latin(sample: bytes, words: str) -> float:
    """Letters that western languages use stand between ASCII letters; two in a row are rare."""
    marks = 0.0
    found = list(LATIN.finditer(words))
    for match in found:
        letter = match[0]
        around = words[max(match.start() - 1, 0) : match.start()] + words[match.end() : match.end() + 1]
        if letter in LATIN_SIGNS:
            marks += 1 if around.isascii() else 0.4
        elif letter in LATIN_LETTERS:
            marks += 1 if around.isascii() and any(one.isalpha() for one in around) else 0.3
    return marks / max(len(found), 1)


def _score_cyrillic(sample: bytes, words: str) -> float:
    """Russian is small letters with a capital at the beginning of words."""
    found = LATIN.findall(words)
    small = sum("а" <= letter <= "я" or letter == "ё" for letter in found)
    large = len(re.findall(r"\b[А-ЯЁ]", words))
    runs = len(re.findall("[а-яёА-ЯЁ]{3,}", words))
    return (small + large) / max(len(found), 1) if runs else 0.0


def _score_pairs(sample: bytes, judge: Callable[[int, int], float]) -> float:
    """Return the average of `judge`, less where hardly a pair stands beside another: words have several letters."""
    pairs = _list_pairs(sample)
    score = sum(judge(*pair) for pair in pairs) / max(len(pairs), 1)
    alone = len(HIGH_RUN.findall(sample))
    return score * SCATTERED if len(pairs) > 2 and alone > 0.8 * len(pairs) else score


def _list_pairs(sample: bytes) -> list[tuple[int, int]]:
    return [(pair[0], pair[1]) for pair in HIGH_PAIR.findall(sample)]


def _score_chinese(sample: bytes, words: str) -> float:
    """The 6,763 characters of GB2312 lie where both bytes are above A0, the common ones first."""

    def judge(lead: int, trail: int) -> float:
        if trail < 0xA1:
            return 0.0
        return 1.0 if lead in GB_COMMON or lead in GB_SYMBOLS else 0.5 if lead in GB_RARE else 0.0

    score = _score_pairs(sample, judge)
    return score * 0.7 if _score_korean(sample, words) > 0.9 else score


def _score_korean(sample: bytes, words: str) -> float:
    """All 2,350 syllables have a first byte of B0 to C8, where Chinese has less than half of its characters."""
    pairs = [pair for pair in _list_pairs(sample) if pair[0] not in GB_SYMBOLS]
    share = sum(lead in KOREAN and trail >= 0xA1 for lead, trail in pairs) / max(len(pairs), 1)
    return share if share > 0.95 and len(pairs) >= ENOUGH else share * 0.5


def _score_traditional(sample: bytes, words: str) -> float:
    """The common characters of Big5 have a first byte of A4 to C6; half of all second bytes are below A1."""

    def judge(lead: int, trail: int) -> float:
        if not (0x40 <= trail <= 0x7E or trail >= 0xA1):
            return 0.0
        return 1.0 if 0xA1 <= lead <= 0xC6 else 0.5 if 0xC9 <= lead <= 0xF9 else 0.0

    pairs = _list_pairs(sample)
    low = sum(trail <= 0x7E for _, trail in pairs) / max(len(pairs), 1)
    return _score_pairs(sample, judge) * (1.0 if low > 0.15 else 0.6)


def _score_japanese(sample: bytes, words: str) -> float:
    """Nearly every Japanese sentence has kana; half-width katakana are what other encodings look like."""
    found = LATIN.findall(words)
    kana = sum("ぁ" <= letter <= "ヿ" for letter in found)
    half = sum("｡" <= letter <= "ﾟ" for letter in found)
    known = sum("一" <= letter <= "龥" or "　" <= letter <= "〿" or "！" <= letter <= "～" for letter in found)
    return (kana + known - half) / max(len(found), 1) * (1.0 if kana else 0.55)


SCORES: dict[str, Callable[[bytes, str], float]] = {
    "cp1252": _score_latin,
    "gb18030": _score_chinese,
    "big5": _score_traditional,
    "shift_jis": _score_japanese,
    "euc_kr": _score_korean,
    "cp1251": _score_cyrillic,
}

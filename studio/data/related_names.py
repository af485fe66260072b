"""What the names of columns say of each other: twins, halves, a new one of an old one, another form of the same."""

from __future__ import annotations

import re
from collections.abc import Sequence

from studio.data.columns import Column
from studio.data.formats.column_names import VERSIONS, find_core, is_version, part_name, simplify

RENEWED = frozenset(
    "new fix fixed after target corrected repaired solution rewritten edited revised improved rephrased correct clean "
    "neutral grammatical unbiased formal good".split()
)
OLD = frozenset(
    "bug buggy broken old before original faulty incorrect wrong erroneous misspelled ungrammatical noisy corrupted "
    "toxic biased informal bad".split()
)
"""Words in the names of code that is to be mended ..."""
LANGUAGES = frozenset(
    "ar bg bn ca cs cy da de el en es et eu fa fi fr ga gl gu ha he hi hr hu hy id ig is it ja jv ka kk km kn ko lo lt "
    "lv mk ml mn mr ms mt my nb ne nl nn no pa pl ps pt ro ru rw si sk sl so sq sr sv sw ta te th tl tr uk ur uz vi wo "
    "xh yo zh zu jp kr cn "
    "eng deu ger fra fre spa ita por nld rus jpn kor cmn zho ara hin tur pol ukr ces swe fin".split()
)
"""Codes that name a language."""
LANGUAGE_NAMES = frozenset(
    "english german french spanish italian portuguese dutch russian ukrainian polish czech slovak hungarian romanian "
    "bulgarian greek turkish arabic hebrew persian farsi urdu hindi bengali bangla tamil telugu marathi gujarati "
    "kannada malayalam punjabi nepali sinhala thai lao khmer burmese vietnamese indonesian malay javanese tagalog "
    "filipino chinese mandarin cantonese japanese korean mongolian kazakh uzbek swahili hausa yoruba igbo zulu xhosa "
    "amharic somali pidgin wolof twi swedish danish norwegian finnish estonian latvian lithuanian icelandic irish "
    "welsh basque catalan galician latin sanskrit deutsch français español italiano português русский українська "
    "中文 英文 日文 韩文 英语 汉语 法语 德语 日语 俄语".split()
)
"""Names of languages."""
HALVES = (("prefix", "suffix"), ("before", "after"), ("left", "right"), ("pre", "post"))
"""What stands before a gap, and behind it."""
COMPARED = tuple(
    ({one}, {other})
    for one, other in ("good bad".split(), "a b".split(), "1 2".split(), "left right".split())
)
"""Words by which the names of two compared things differ."""
TWIN = re.compile(r"(.*?[^\W_]{2,}?|[a-z](?=_?\d))_?(\d|[a-dA-D])")
"""The name of one of several of a kind: `sentence1`, `text_b`, `q2`."""


def hints(column: Column, names: Sequence[str]) -> bool:
    """Return whether a column's name is one of `names`, words that only qualify left out."""
    return simplify(column.name) in names or find_core(column.name) in names


def is_language(name: str) -> bool:
    """Return whether a column is named after a language."""
    front = simplify(name).partition("_")[0]
    return (front in LANGUAGES or front in LANGUAGE_NAMES) and len(part_name(name)) <= 2


def are_twins(name: str, other: str) -> bool:
    """Return whether two column names differ only by a number or a letter at the end: `sentence1` and `sentence2`."""
    one, two = (TWIN.fullmatch(simplify(each)) for each in (name, other))
    if one and two and one[1] == two[1] and one[2] != two[2]:
        return True
    # `#1 String` and `#2 String`
    front = [re.fullmatch(r"\W*(\d)\W+([^\d]{3,})", each) for each in (name, other)]
    return bool(front[0] and front[1]) and front[0][2] == front[1][2] and front[0][1] != front[1][1]


def are_sides(name: str, other: str) -> bool:
    """Return whether two column names say which of two compared things each is: `A` and `B`, `left_text`, `good`."""
    one, two = {*part_name(name)}, {*part_name(other)}
    return (one - two, two - one) in COMPARED or (two - one, one - two) in COMPARED


def is_renewed(name: str, other: str) -> bool:
    """Return whether a column is what became of another one, by their names: `code_after` of `code_before`."""
    here, there = ([word for word in part_name(each) if word not in OLD | RENEWED] for each in (name, other))
    return here == there and bool(RENEWED & {*part_name(name)}) and bool(OLD & {*part_name(other)})


def is_half(name: str, used: Sequence[str]) -> bool:
    """Return whether a column is what stands before a gap, or behind it, and one in use is the other half."""
    words = part_name(name)
    for here, there in HALVES:
        for one, other in ((here, there), (there, here)):
            if one in words and tuple(other if word == one else word for word in words) in map(
                part_name, used
            ):
                return True
    return False


def extends(name: str, other: str) -> bool:
    """Return whether a column is another form of one, by their names: `normalized_code_before` of `code_before`.

    So is `question_orig` of `question`, and `query_toks` of `query`.
    """
    words, core = part_name(name), part_name(other)
    if len(core) > 1 and len(words) > len(core) and words[-len(core) :] == core:
        return True
    front = words[: -len(core)] if core and words[-len(core) :] == core else ()
    return is_version(name, other) or (bool(front) and {*front} <= VERSIONS | RENEWED)


def are_versions(name: str, other: str) -> bool:
    """Return whether two columns are the same in two languages, by their names: `prompt_en` and `prompt_tr`."""
    one, two = part_name(name), part_name(other)
    ends = bool(one and two) and one[:-1] == two[:-1] and one[-1] != two[-1]
    return ends and len(one) > 1 and {one[-1], two[-1]} <= LANGUAGES


def is_in_language(name: str, other: str) -> bool:
    """Return whether a column is one in another language, by their names: `instruction_ko` of `instruction`."""
    words, core = part_name(name), part_name(other)
    if are_versions(name, other):
        return True
    behind = words[len(core) :]
    return bool(core) and words[: len(core)] == core and len(behind) == 1 and behind[0] in LANGUAGES

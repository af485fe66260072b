"""What a column's name says: how it is spelled for comparison, and what is left without words that only qualify."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container, Sequence
from functools import lru_cache

NAME_CHARACTERS = 100
HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
LOW_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])")
WORD = re.compile(r"[^\W\d_]+")
VERSIONS = frozenset(
    "orig original raw clean cleaned processed preprocessed normalized normalised lower lowercase lowercased tok toks "
    "tokens tokenized tokenised translated untranslated no value backup copy old english annot annotated "
    "marked tagged masked parse parsed binary tree stripped stemmed lemmatized".split()
)
"""Words behind a name that make another form of the same of it."""
QUALIFIERS = frozenset(
    "the a an of my your new raw clean cleaned str string text txt content contents body value field column col "
    "words user human person customer client student patient assistant model ai bot llm gpt chatgpt machine agent "
    "doctor teacher expert system_generated generated predicted final gold golden correct true best right expected "
    "full long short original translated processed formatted en eng english zh chinese de german fr french es "
    "spanish main first initial given ground pretokenized canonical reference official detailed stem sft json train "
    "training example sample data item row target source src tgt in out markdown md html plaintext "
    "bonne correcte posée correcta correto correta corretta giusta richtige richtig gestellte "
    "esperada esperado attendue attendu attesa atteso erwartete erwartet".split()
)
"""Words that say whose, which or how, and not what: without them `user_question` is a question."""
WIDE_QUALIFIERS = frozenset(
    "最终 最后 最後 标准 標準 正确 正確 参考 參考 用户 用戶 客户 患者 医生 专家 模型 人工 生成 原始 "
    "详细 完整 中文 英文".split()
)
"""The same in front of Chinese words."""
BLOCKING = frozenset(
    "id ids idx index no num number count len length size score scores rating rank url uri link href path negatives "
    "file type kind category tag tags source_url lang language date time timestamp start end offset span "
    "position hash key version incorrect wrong hallucinated hallucination unsafe false bad negative neg "
    "distractor rejected worse hard tokens token embedding vector logprob probability prob confidence quality "
    "difficulty level name names title author status flag is has was metadata meta eval grade verified".split()
)
"""Words that make something else of a name: `answer_start` is no answer."""


ABOUT = frozenset(
    "model models source origin reason reasons policy by annotator reward rewards logp logps label labels explanation "
    "feedback critique rationale judge provider generator prompt question".split()
)
"""Words in the names of what is told of an answer."""
GUESSED = frozenset(
    "predicted prediction predictions predict pred preds inferred guessed baseline auto automatic machine model system "
    "generated llm gpt ai bot tuned finetuned".split()
)
"""Words in the names of what a program found, or said ..."""
KNOWN = frozenset(
    "gold golden ground true truth gt manual human reference actual correct corrected expected verified user person "
    "expert annotated final".split()
)
"""... and of what is known to be so, or what a person said."""
SPELLED = (
    *"instruction instructions question questions answer answers response responses completion conversation".split(),
    *"conversations prompt output chosen rejected summary translation solution description category".split(),
)
"""Names that are known also where one letter is wrong."""
OTHER_WORDS = frozenset("reponse reponses chose rejecter".split())
"""Words one letter away from a known name that are not it."""


@lru_cache(maxsize=1024)
def mend_spelling(word: str) -> str:
    """Return the known word from which `word` is one slip away: a letter too many, missing, wrong, or swapped."""
    if len(word) < 5 or not (word.isascii() and word.isalpha()) or word in SPELLED or word in OTHER_WORDS:
        return word
    return next((known for known in SPELLED if known[0] == word[0] and _is_slip(word, known)), word)


def _is_slip(word: str, known: str) -> bool:
    """Return whether one letter tells `word` from `known`, but for an s at the end, which makes several of one."""
    if abs(len(word) - len(known)) > 1 or word in (f"{known}s", known[:-1] if known[-1] == "s" else ""):
        return False
    same = 0
    while same < min(len(word), len(known)) and word[same] == known[same]:
        same += 1
    here, there = word[same:], known[same:]
    if len(word) == len(known):
        return here[1:] == there[1:] or (here[:2] == there[1::-1] and here[2:] == there[2:])
    return here[1:] == there if len(word) > len(known) else here == there[1:]


@lru_cache(maxsize=4096)
def simplify(name: str) -> str:
    """Return a column name in lower case with underscores, also for humps; blanks and invisible signs around it go."""
    if not isinstance(name, str) or len(name) > NAME_CHARACTERS:
        return ""
    name = name.strip("\ufeff\u200b\u200c\u200d\u2060 \t\r\n")
    if name[:1].islower() and name.isalnum():
        name = LOW_HUMP.sub("_", name)
    name = name.lower()
    if not name.isascii():
        name = unicodedata.normalize("NFKC", name).strip()
    return "_".join(mend_spelling(word) for word in name.replace(" ", "_").replace("-", "_").split("_"))


@lru_cache(maxsize=1024)
def part_name(name: str) -> tuple[str, ...]:
    """Return the words of a column name: ("user", "question") of `userQuestion` or `User question 2`."""
    if not isinstance(name, str) or len(name) > NAME_CHARACTERS:
        return ()
    # A chain of thought is one word however it is spelled.
    words = HUMP.sub("_", unicodedata.normalize("NFKC", name).replace("CoT", "cot"))
    return tuple(mend_spelling(part.lower()) for word in WORD.findall(words) for part in _part_compound(word))


def _part_compound(word: str) -> tuple[str, ...]:
    """Return a Chinese word without the one before it that says whose, or which: ("最终", "答案") of 最终答案."""
    front = word[:2]
    return (front, *_part_compound(word[2:])) if front in WIDE_QUALIFIERS and len(word) > 3 else (word,)


@lru_cache(maxsize=1024)
def find_core(name: str) -> str:
    """Return what a column name says without the words that only qualify: `question` of `user_question`.

    "" where a word makes something else of it, as in `answer_start`.
    """
    words = part_name(name)
    if BLOCKING & {*words}:
        return ""
    return "_".join(word for word in words if word not in QUALIFIERS and word not in WIDE_QUALIFIERS)


def list_words(name: str) -> tuple[str, ...]:
    """Return the words of a column name that could say what it is: () where one makes something else of it.

    Of what was rejected that is the only one: `rejected_evasive` is a worse answer, `rejected_model` is none.
    """
    words = part_name(name)
    if "rejected" in words:
        return () if ({*words} - {"rejected"}) & (BLOCKING | ABOUT) else ("rejected",)
    return (
        ()
        if BLOCKING & {*words}
        else tuple(word for word in words if word not in QUALIFIERS and word not in WIDE_QUALIFIERS)
    )


def is_version(name: str, other: str) -> bool:
    """Return whether a column is another form of one, by their names: `question_orig` of `question`."""
    words, core = part_name(name), part_name(other)
    behind = words[len(core) :]
    return bool(core and behind) and words[: len(core)] == core and {*behind} <= VERSIONS


def drop_versions(names: Sequence[str]) -> list[str]:
    """Return `names` without other forms of one of them."""
    return [name for name in names if not any(is_version(name, other) for other in names)]


def is_guessed(name: str, others: Sequence[str]) -> bool:
    """Return whether a column is what a program found, and another one the same as it is known: `predicted_label`.

    So are two whose names tell nothing else: `pred` and `gold`.
    """
    words = {*part_name(name)}
    if not words & GUESSED or words & KNOWN:
        return False
    told = [{*part_name(other)} for other in others if other != name]
    return any(other & KNOWN and other - KNOWN == words - GUESSED for other in told)


def drop_guesses(names: Sequence[str], columns: Sequence[str], taken: Container[str]) -> list[str]:
    """Return `names` without what a program found where it is known how it is, in one of them or in a free column."""
    guessed = [name for name in names if is_guessed(name, columns)]
    left = [name for name in names if name not in guessed]
    known = [name for name in columns if any(is_guessed(one, [name]) for one in guessed)]
    return left or [name for name in known if name not in taken]

"""How likely each two columns are to be a question and its answer: names, cells and places count together.

Every sign has a weight as one of the question and as one of the answer. The weights were fitted on some 260 shapes of
data sets whose questions and answers are known, a third of them with the names taken away, so that cells and places
count also where no name is known. Fitted on all batches but one, all 88 pairs above 0.9 of the one left out were right;
the words below had been collected on some of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from studio.data.columns import Column
from studio.data.dataset_kinds import REMARKS, find_document, find_faulty, find_judged, find_kind, find_named
from studio.data.formats.aliases import (
    ANSWERS,
    EXPECTED,
    INPUT,
    INSTRUCTION,
    MATERIAL,
    PRODUCTS,
    QUESTIONS,
    SOURCES,
)
from studio.data.formats.column_names import BLOCKING, part_name
from studio.data.formats.context import TECHNICAL
from studio.data.ranking import (
    DATED,
    GRADED,
    JUDGED,
    MADE,
    MOSTLY,
    THINKING,
    TOLD,
    is_answer,
    is_test,
    rank_answers,
    rank_questions,
)
from studio.data.related_names import are_twins, hints, is_renewed

READ = frozenset(
    "question questions query prompt prompts queries instruction instructions task problem input source src text "
    "sentence utterance article document passage dialogue dialog conversation email body report essay story original "
    "orig old before raw buggy bug broken wrong incorrect noisy informal complex normal intent nl request claim "
    "message post post_text pattern patterns description abstract_of content context requirement requirements topic "
    "keywords ask user human frage aufgabe eingabe quelle pregunta tarea entrada domanda pergunta вопрос задание 问题 "
    "问 输入 题目 原文 質問 入力 질문 입력".split()
)
"""Words in the names of what is read before something is written."""
WRITTEN = MADE | frozenset(
    "targ tgt simplifications lexs rewritten paraphrased summarized summarised shortened ref simple simpler "
    "simplification neutral formal fluent clean polished revised edited reworded rephrased rephrase "
    "normalized normalised layman laymen cmd command bash shell regex snippet program implementation highlights "
    "tldr gist gt "
    "directions expected explanation translated translations summaries abstract answer_text assistant bot ai gpt "
    "chatgpt chatbot "
    "antwort antworten ausgabe lösung loesung übersetzung uebersetzung zusammenfassung respuesta salida "
    "solución solucion traducción traduccion resumen réponse reponse sortie traduction résumé risposta "
    "soluzione traduzione riassunto resposta saída tradução resumo ответ решение перевод 答 答案 回答 回复 输出 "
    "译文 摘要 总结 解答 出力 翻訳 要約 답변 출력 번역 요약".split()
)
"""Words in the names of what was written for it."""
BESIDE = frozenset(
    "description bio context contexts passage passages chunk chunks quote quotes reference references document "
    "documents docs evidence facts rubric narrative background scenario persona profile definition definitions "
    "instruction instructions guideline guidelines constraint constraints rules knowledge excerpt excerpts source "
    "sources schema article kontext contexto contexte contesto 参考 资料 背景 材料".split()
)
"""Words in the names of what stands beside a question to be read."""
NOTED = frozenset(
    "metadata meta source sources url urls link links license licence copyright attribution tags tag annotation "
    "annotated annotations annotator annotators raw test tests check checks verification extra info comments notes "
    "created updated disclaimer generations stats statistics usage timestamp embedding embeddings version setup seed "
    "seeds decomposition mask masks".split()
)
"""Words in the names of what was noted about a row."""
ASIDE = frozenset(
    "comments feedback critique judgement judgment extra_info extra metadata meta raw original original_text "
    "annotation source url tags license licence copyright attribution disclaimer incorrect distractor distractors "
    "negative negatives wrong rejected test tests check checks verification constraints seed seeds "
    "generations generation samples attempts attempt neg preference preferences mask masks criteria criterion "
    "rubrics".split()
)
"""Words in the names of what is rather left out."""
THOUGHTS = frozenset(
    "explanation explanations rationale rationales reason reasons analysis steps derivation proof justification "
    "exp commentary 解析 解释 分析 解説 해설 explicación explicacion erklärung begründung explication justification "
    "explicação explicacao spiegazione uitleg объяснение пояснение".split()
)
"""Names of what explains an answer, which may be learned as thoughts before it."""
TRACES = frozenset(
    "thinking reasoning cot trace traces trajectory decomposition thoughts thought chain scratchpad rationale".split()
)
"""Words in the names of what a model thought on its way to the answer."""
SIGNS: dict[str, tuple[float, float]] = {
    "asked": (0.8, -0.3),
    "read": (0.7, -0.7),
    "said": (-0.1, 0.7),
    "made": (-0.6, 1.5),
    "beside": (0.0, -0.1),
    "noted": (-0.5, -0.7),
    "aside": (-0.4, 0.0),
    "thought": (-0.3, -0.8),
    "judged": (-0.1, 0.9),
    "remark": (-0.4, 0.7),
    "prose": (0.4, 0.2),
    "coded": (0.2, 0.6),
    "labels": (-0.2, 0.5),
    "short": (-0.4, -0.9),
    "unspoken": (0.0, -0.4),
    "lists": (-0.6, -0.2),
    "asks": (1.2, -0.4),
    "same": (-0.9, -1.2),
    "repeated": (-0.4, 1.0),
    "long": (0.9, 0.6),
}
"""Sign -> its weights as one of the question, and as one of the answer."""
LIKELY = 0.6
"""From here on the likelihood of a pair puts it first, ..."""
LIKELY_ANSWER = 0.75
"""... and that of an answer to a question that is known."""
BEHIND, NEXT, LEADING, TWINS = 0.8, 0.4, 0.6, -0.9
"""Weights of an answer behind its question, next to it; of a question in front; of names that differ by a number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two columns and how likely they are the question and its answer."""

    question: str
    answer: str
    likelihood: float
    """0..1 among all pairs of the data set."""


def rank_pairs(columns: Sequence[Column], question: str = "") -> list[Pair]:
    """Return the pairs of `columns`, the likeliest first; of one `question` only where it is known."""
    columns = [one for one in columns if one.rows]
    longest = max((one.characters for one in columns), default=0)
    weights = {one.name: _weigh(one, longest) for one in columns}
    scores: dict[tuple[str, str], float] = {}
    for place, one in enumerate(columns):
        if one.tagged or not (one.spoken or one.cut) or (question and one.name != question):
            continue
        for behind, other in enumerate(columns):
            if other is not one:
                score = weights[one.name][0] + weights[other.name][1]
                score += BEHIND * (behind > place) + NEXT * (behind == place + 1) + LEADING * (place == 0)
                scores[one.name, other.name] = score + TWINS * are_twins(one.name, other.name)
    whole = sum(map(math.exp, scores.values()))
    pairs = [
        Pair(question=names[0], answer=names[1], likelihood=math.exp(score) / whole)
        for names, score in scores.items()
    ]
    return sorted(pairs, key=lambda pair: -pair.likelihood)


def order_questions(columns: Sequence[Column]) -> list[Column]:
    """Return those of `columns` that could be read, the likeliest question first."""
    order = rank_questions(columns)
    named = find_named(columns)
    if first := find_document(columns) or find_faulty(columns) or (named[0] if named else None):
        return [first, *(one for one in order if one is not first)]
    if first := find_judged(columns, order):
        return [first, *(one for one in order if one is not first)]
    likely = _find_likely(columns)
    return sorted(order, key=lambda one: one.name != likely.question) if likely else order


def order_answers(columns: Sequence[Column], question: str) -> list[Column]:
    """Return those of `columns` that could be learned, the likeliest answer to the column `question` first."""
    likely = _find_likely(columns, question)
    order = rank_answers(columns, question)
    judged = bool(order) and bool({*part_name(order[0].name)} & JUDGED)
    judged = judged or (bool(order) and (order[0].tagged or is_renewed(order[0].name, question)))
    # What is called an answer with its whole name goes before what is likelier by a word of it, and by its cells.
    named = [one for one in order if hints(one, TOLD) and one.filled >= MOSTLY and one.distinct > 1]
    results = [one for one in order if is_answer(one) and one.distinct > 1 and one.name != question]
    if likely and {*part_name(likely.answer)} & TRACES and results:
        return [*results, *(one for one in order if one not in results)]  # and the way to it as thoughts
    weak = likely is not None and not any(
        hints(one, (*TOLD, *PRODUCTS)) for one in order if one.name == likely.answer
    )
    if weak and len(named) == 1 and not judged:
        return [*named, *(one for one in order if one not in named)]
    return sorted(order, key=lambda one: one.name != likely.answer) if likely and not judged else order


def _find_likely(columns: Sequence[Column], question: str = "") -> Pair | None:
    """Return the pair that is likely enough to be put first; None for labels, twins, and kinds known as a whole."""
    pairs = rank_pairs(columns, question)
    if not pairs or pairs[0].likelihood < (LIKELY_ANSWER if question else LIKELY) or find_kind(columns):
        return None
    labels = any(one.is_labels for one in columns if one.name == pairs[0].answer)
    labels = labels or any(one.is_labels or is_test(one) for one in columns if one.name == pairs[0].question)
    return None if labels or are_twins(pairs[0].question, pairs[0].answer) else pairs[0]


def _weigh(one: Column, longest: float) -> tuple[float, float]:
    """Return the weights of a column as the question and as the answer."""
    asked = said = 0.0
    for sign, strength in _find_signs(one, longest):
        asked += strength * SIGNS[sign][0]
        said += strength * SIGNS[sign][1]
    return asked, said


def _find_signs(one: Column, longest: float) -> Iterator[tuple[str, float]]:
    """Yield what a column's name and cells are signs of, and how strong they are."""
    words = {*part_name(one.name)}
    short = one.spoken and not (one.is_prose or one.coded or one.is_labels)
    yield "asked", hints(one, (*QUESTIONS, *INSTRUCTION, "prompt"))
    yield "read", hints(one, (*SOURCES, *INPUT)) or bool(words & READ)
    yield "said", hints(one, ANSWERS)
    yield "made", hints(one, (*PRODUCTS, *EXPECTED)) or bool(words & WRITTEN)
    yield "beside", hints(one, MATERIAL) or bool(words & BESIDE)
    yield "noted", bool(words & (NOTED | TECHNICAL | DATED | BLOCKING))
    yield "aside", bool(words & ASIDE)
    yield "thought", bool(words & (THOUGHTS | THINKING | TRACES))
    yield "judged", bool(words & (JUDGED | GRADED))
    yield "remark", bool(words & REMARKS)
    yield "prose", one.is_prose and not one.coded
    yield "coded", one.coded
    yield "labels", one.is_labels
    yield "short", short
    yield "unspoken", not one.spoken
    yield "lists", not one.plain
    yield "asks", one.asks
    yield "same", one.distinct <= 1
    yield "repeated", 1 < one.distinct < 0.5 * one.rows
    yield "long", math.log((1 + one.characters) / (1 + longest))

"""Which columns are likeliest to be the question and the answer, by their names, their place and what they hold."""

from __future__ import annotations

from collections.abc import Sequence

from studio.data.columns import Column, resembles
from studio.data.dataset_kinds import ASKING, find_class, find_entry, find_remark, find_titled
from studio.data.formats.aliases import (
    ANSWERS,
    EXPECTED,
    INPUT,
    INSTRUCTION,
    LABEL,
    PRODUCTS,
    QUESTIONS,
    SOURCES,
)
from studio.data.formats.cells import Values
from studio.data.formats.column_names import BLOCKING, is_guessed, part_name, simplify
from studio.data.formats.context import TECHNICAL
from studio.data.related_names import OLD, are_twins, hints, is_language, is_renewed

MOSTLY = 0.95
"""Of the rows: what holds less is rather not asked for first, for the others would be left out."""
JUDGED = frozenset(
    "label labels similarity relatedness relation relations sentiment emotion emotions intent intents stance polarity "
    "toxicity toxic verdict decision truth entailment duplicate paraphrased gold spans entities slots annotation "
    "annotations".split()
)
"""Words in the names of what somebody found out about a text."""
TAGGED = frozenset("intent intents sentiment emotion emotions stance polarity toxicity toxic".split())
"""Those of them that hold a word or two; a column of whole phrases with such a name is about it, and is no label."""
GRADED = frozenset("class classes category categories rating score stars grade tag tags quality".split())
"""The same, but elsewhere they only sort the rows: they are the answer where nothing else could be."""
MADE = frozenset(
    "answer answers response responses output outputs completion reply solution target targets summary summaries sql "
    "sparql "
    "query translation corrected correction corrections paraphrase paraphrases rewrite rewrites "
    "extracted extraction simplified headline result middle patch fix "
    "fixed ideal new after proof proofs cypher latex formula cause diagnosis plain".split()
)
"""Words in the names of what was written for a text."""
TOLD = (*ANSWERS, *EXPECTED, "label", "标签", "targets", "solutions", "a", "ans", "resp")
"""Names of what is learned wherever it stands; thumbs and votes are of an answer, and none."""
MACHINES = frozenset(
    "gpt chatgpt llm model ai bot rag generated predicted prediction synthetic machine generado generada généré "
    "générée generiert generierte gerado gerada generato generata сгенерированный сгенерировано 生成".split()
)
"""Words in the names of what a program wrote."""
REVISED = frozenset("corrected revised improved refined".split())
"""Names of what became of an answer."""
DESCRIBED = frozenset(
    "docstring docstrings doc docs documentation comment comments summary explanation".split()
)
"""Words in the names of what is written of code as often as code is written for it."""
TESTS = frozenset("test tests unittest unittests testcase testcases assertion assertions".split())
"""Words in the names of programs that check another one."""
OWN = frozenset(
    "article document story report review note notes transcript email mail passage dialogue dialog conversation text "
    "content body code abstract transcription".split()
)
"""Words in the names of texts that stand for themselves, and are no background of another one."""
THINKING = frozenset(
    "thinking reasoning cot trace thoughts thought 思考 思维链 思维过程 推理过程 思考过程".split()
)
"""Words in the names of what was thought before the answer."""
WHO = frozenset("annotator annotators labeler labeller rater raters reviewer contributor".split())
"""Words in the names of who found something out."""
PREDICTED = frozenset("predicted prediction predictions predict pred preds guess guessed".split())
"""Words in the names of what a program found: behind what is called an answer."""
TRUE = frozenset("truth gold golden expected".split())
"""Words in the names of what is known to be the answer, of whatever kind it is."""
RIGHT = frozenset(
    "correct right true richtig richtige correcta correcto correcte верный правильный 正确".split()
)
WRONG = frozenset("wrong incorrect distractor distractors false falsch falsche".split())
"""Words in the names of the right answer and of the wrong ones beside it ..."""
OPTION = frozenset("answer answers option choice text antwort respuesta réponse ответ 答案".split())
"""... and words that add nothing to them."""
MEASURED = frozenset("latency duration elapsed runtime sec secs seconds ms millis cost".split())
"""Words in the names of what was measured while a row was made."""
DECISIONS = frozenset("decision verdict judgment judgement conclusion".split())
"""Words in the names of short answers to what a text beside them answers at length."""
HALF = 0.5
"""A text with so much of another one's letters is no background of it."""
DATED = frozenset(
    "date time year month day created updated version page row line index idx no num number name user username author "
    "license licence source split subset".split()
)


def is_answer(column: Column) -> bool:
    """Return whether a column's name says that it was written, or found out, for another one."""
    words = {*part_name(column.name)}
    if column.words >= 3 and not column.is_labels:
        words -= TAGGED
    if column.counted and len(words) > 1:
        words -= MADE  # `was_fixed` says whether something was written, and is not it
    return hints(column, (*ANSWERS, *PRODUCTS, *EXPECTED, *LABEL)) or bool(words & (JUDGED | MADE))


def find_right(columns: Sequence[Column]) -> Column | None:
    """Return the only column called the right answer beside those that are called wrong ones; None for any other."""
    wrong = any({*part_name(one.name)} & WRONG for one in columns)
    named = [(one, {*part_name(one.name)}) for one in columns if one.distinct > 1 and not one.counted]
    right = [one for one, words in named if words & RIGHT and words <= RIGHT | OPTION]
    return right[0] if wrong and len(right) == 1 else None


def is_wrong(one: Column, asked: Column, answer: Column, rows: Sequence[Values]) -> bool:
    """Return whether a column holds wrong answers to what is asked, and no text that the right one was made of.

    Of a text that is to be mended, the faulty form has most of its words, and nothing is asked.
    """
    if one is asked or find_right([one, answer]) is not answer or not {*part_name(one.name)} & WRONG:
        return False
    questions = hints(asked, QUESTIONS) or asked.asks > ASKING
    return questions or not (asked.distinct == 1 or resembles(one.name, answer.name, rows))


def is_true(name: str) -> bool:
    """Return whether a column's name says that it holds what is known to be the answer."""
    return bool({*part_name(name)} & TRUE)


def may_answer(column: Column) -> bool:
    """Return whether a column could be learned: words, labels and numbers of any kind, but no ids, dates, addresses."""
    if not column.rows:
        return False
    words = {*part_name(column.name)}
    if {*part_name(column.name)[-1:]} & WHO:
        return False
    if words & TRUE and column.distinct > 1:
        return True  # dates, places and sums, too
    if column.cut or (column.spoken and (column.is_prose or not words & TECHNICAL)):
        return True
    if column.distinct < 2 or words & (TECHNICAL | DATED | MEASURED):
        return False
    return column.counted or bool(words & (JUDGED | GRADED)) or column.distinct <= column.rows / 2


def _is_query(one: Column) -> bool:
    """Return whether a column holds code, and is called nothing but that."""
    return one.coded and one.plain and simplify(one.name) in PRODUCTS and one.distinct > 1


def is_test(column: Column) -> bool:
    """Return whether a column holds programs that check other ones."""
    return column.coded and bool(TESTS & {*part_name(column.name)})


def is_drafted(name: str, other: str) -> bool:
    """Return whether a column is what a program wrote, by its name, and `other` the same from somebody else."""
    words, others = part_name(name), part_name(other)
    kinds = {*words[:1], *words[-1:]} - MACHINES
    shared = kinds & {*others[:1], *others[-1:]}
    return bool(MACHINES & {*words} and shared) and not MACHINES & {*others}


def are_drafts(name: str, other: str) -> bool:
    """Return whether two columns are what two programs wrote, by their names: `gpt3` and `ft_gpt`."""
    return bool(MACHINES & {*part_name(name)} and MACHINES & {*part_name(other)})


def _has_person(one: Column, columns: Sequence[Column]) -> bool:
    """Return whether what a program wrote stands beside the same from somebody else: `answer_gpt`, `answer_doctor`."""
    others = [two for two in columns if two is not one and two.is_prose]
    return any(is_drafted(one.name, two.name) and not BLOCKING & {*part_name(two.name)} for two in others)


def _is_heading(one: Column, columns: Sequence[Column]) -> bool:
    """Return whether a column is the heading of a longer text beside it: the subject of a mail and its body."""
    words = part_name(one.name)
    front = words[:-1]
    return words[-1:] == ("subject",) and any(
        two is not one
        and two.is_prose
        and two.characters > one.characters
        and part_name(two.name) in ((*front, "body"), (*front, "text"), (*front, "content"))
        for two in columns
    )


def _is_result(one: Column, columns: Sequence[Column]) -> bool:
    """Return whether a column is the bare result of a solution that another one writes out."""
    return (
        hints(one, (*ANSWERS, *EXPECTED))
        and not one.is_prose | one.coded
        and any(
            two is not one and two.is_prose and {*part_name(two.name)} & {"solution", "solutions"}
            for two in columns
        )
    )


def _is_target(one: Column, columns: Sequence[Column]) -> bool:
    """Return whether a column names what a stance or a label beside it is about."""
    about = one.is_labels and {*part_name(one.name)} & {"target", "targets"}
    return bool(about) and any(
        two.is_labels and {*part_name(two.name)} & JUDGED for two in columns if two is not one
    )


def _is_brief(one: Column) -> bool:
    """Return whether a column holds short texts, almost each another one, and is called no fact of the row."""
    words = {*part_name(one.name)}
    told = words & (BLOCKING | DATED | TECHNICAL | GRADED)
    return one.spoken and one.plain and not told and one.distinct > 0.8 * one.rows and one.filled >= MOSTLY


def is_outdone(name: str, question: str, columns: Sequence[Column]) -> bool:
    """Return whether another column is likelier to be the answer to `question` than `name`, which is called so.

    A `target` of a word or two beside a stance is what the text is about; a table beside a query is what it gives;
    beside what became of old code, a label only sorts.
    """
    answer = next((one for one in columns if one.name == name), None)
    if answer is None:
        return False
    others = [one for one in columns if one is not answer]
    if answer.coded and simplify(name) not in (*ANSWERS, *PRODUCTS) and any(map(_is_query, others)):
        return True
    if (
        answer.coded
        and any(map(is_test, others))
        and not any(one.is_prose and not one.coded for one in others)
    ):
        return True
    if answer.is_labels and any(one.is_prose and is_renewed(one.name, question) for one in others):
        return True
    if answer.is_labels and {*part_name(name)} & {"target", "targets"}:
        return any(one.is_labels and {*part_name(one.name)} & JUDGED for one in others)
    if answer.structured and any(hints(one, LABEL) and one.distinct == 2 for one in others):
        return True  # what it says of words of the text is judged
    return answer.structured and any(one.coded and one.plain and is_answer(one) for one in others)


def is_one_of_several(asked: Column, beside: Sequence[Column]) -> bool:
    """Return whether the answer could be made of one of the texts `beside` as well as of the one that is read.

    A note beside a talk is as good a beginning of a summary; a background, facts and a persona are none.
    """
    if hints(asked, (*QUESTIONS, *INSTRUCTION, "prompt")) or not OWN & {*part_name(asked.name)}:
        return False
    return any(
        OWN & {*part_name(one.name)} and one.is_prose and one.characters >= HALF * asked.characters
        for one in beside
    )


def describes_code(one: Column, columns: Sequence[Column]) -> bool:
    """Return whether a column was as likely written for code as code for it: a comment, a published program's text."""
    words = {*part_name(one.name)}
    told = [
        two
        for two in columns
        if {*part_name(two.name)} & {"author", "license", "licence", "url", "path", "repo"}
    ]
    return not one.coded and bool(words & DESCRIBED or ("description" in words and len(told) > 1))


def heads_document(name: str, columns: Sequence[Column]) -> bool:
    """Return whether a column is a headline beside a date and an address: a part of the document, perhaps."""
    told = [one for one in columns if {*part_name(one.name)} & (DATED | {"url", "link", "source", "author"})]
    return part_name(name)[-1:] in (("headline",), ("title",)) and len(told) > 1


def is_either_way(question: str, answer: str, columns: Sequence[Column]) -> bool:
    """Return whether the answer could as well be another column, by the names: a summary, or a headline; a decision.

    Code is written for a description, and a description of code.
    """
    known = {one.name: one for one in columns}
    if question not in known or answer not in known or not known[answer].is_prose:
        return False
    if known[answer].coded:
        return describes_code(known[question], [*known.values()])
    rest = [one for name, one in known.items() if name not in (question, answer)]
    if heads_document(answer, rest):
        return True
    if any(question in one.sums and one.characters > known[answer].characters for one in rest):
        return True
    if any(one.is_labels and {*part_name(one.name)} & DECISIONS for one in rest):
        return True
    return simplify(answer) in PRODUCTS and any(
        simplify(one.name) in PRODUCTS and one.is_prose and not one.coded and one.filled >= MOSTLY
        for one in rest
    )


def rank_questions(columns: Sequence[Column]) -> list[Column]:
    """Return those of `columns` that could be read, the likeliest question first."""
    read = [one for one in columns if one.spoken]
    if entry := find_entry(columns) or find_titled(columns):
        return [*entry, *(one for one in read if one not in entry)]
    if remark := find_remark(columns):
        rest = [one for one in read if one not in remark and (one.is_prose or one.coded)]
        return [remark[0], *rest, remark[1]]
    if find_class(columns) and (prose := [one for one in read if one.is_prose]):
        between = len(prose) > 1 and prose[0] is columns[0] and find_class(columns) is not columns[-1]
        return prose if between else sorted(prose, key=lambda one: -one.characters)
    if not any(one.plain and one.is_prose for one in read):
        read += [one for one in columns if one.cut and not one.tagged and one not in read]
        read = [one for one in read if not (one.is_labels and {*part_name(one.name)} & JUDGED)] or read
    named = [
        one
        for one in read
        if one.cut
        or one.asks >= ASKING
        or not BLOCKING & {*part_name(one.name)}
        or hints(one, (*QUESTIONS, *SOURCES))
    ]
    if any(one.is_prose and not one.coded for one in named) or not any(one.is_prose for one in read):
        read = named or read
    words = [one for one in read if one.is_prose and not one.coded]
    if any(not {*part_name(one.name)} & DESCRIBED and not is_answer(one) for one in words):
        read = [one for one in read if not one.coded]
    prose = [one for one in read if (one.is_prose or one.cut) and not one.is_labels]
    prose = [one for one in prose if one.distinct > 1 or one.rows < 3]
    return sorted(
        read,
        key=lambda one: (
            one.distinct < 2 < one.rows,
            is_test(one),
            bool(prose) and one not in prose,
            one.structured and any(other.plain for other in prose),
            is_answer(one),
            one.filled <= MOSTLY,
            one.asks <= 0.3,
            not hints(one, (*QUESTIONS, *SOURCES)),
            not (one.plain or one.cut),
        ),
    )


def rank_answers(columns: Sequence[Column], question: str) -> list[Column]:
    """Return those of `columns` that could be learned, the likeliest answer to the column `question` first."""
    remark = find_entry(columns) or find_remark(columns) or find_titled(columns)
    sorted_by = find_class(columns)
    first = remark[1] if remark and remark[1].name != question else sorted_by
    names = [one.name for one in columns]
    place = names.index(question) if question in names else -1
    free = [one for one in columns if one.name != question and may_answer(one)]
    twins = {one.name for one in columns if are_twins(one.name, question)}
    judged = [one for one in free if one.name not in twins and one.distinct > 1]
    judged = [one for one in judged if {*part_name(one.name)} & (JUDGED | GRADED)]
    # Of two texts side by side, what somebody found out about both is learned, and not the second from the first.
    twins = twins if judged else set()
    alone = not any(one.is_prose and one.name not in twins for one in free)
    asking = next((one.asks for one in columns if one.name == question), 0) >= ASKING
    alone = alone and not (asking and any(_is_brief(one) for one in free))
    spoken = is_language(question)
    # A stance on a target, both in a word or two: what was found out is learned, and not what it is about.
    finding = alone and any({*part_name(one.name)} & JUDGED and one.is_labels for one in free)
    asked_in_code = any(one.coded for one in columns if one.name == question)
    asked_in_words = any(one.cut for one in columns if one.name == question)
    described = any(one.is_prose and not one.coded for one in columns)

    # Whose thoughts are there wrote the answer that follows from them.
    thinkers = {part_name(one.name)[:1] for one in columns if {*part_name(one.name)[1:]} & THINKING}
    thinkers = {front for front in thinkers if any(part_name(one.name)[:1] == front for one in free)}

    right = find_right(columns)
    known = [one for one in free if {*part_name(one.name)} & TRUE and one.distinct > 1]
    known_beside = any(hints(one, TOLD) and not {*part_name(one.name)} & PREDICTED for one in free)

    def likeliness(one: Column) -> tuple[object, ...]:
        words = {*part_name(one.name)}
        sure = hints(one, (*ANSWERS, *PRODUCTS, *LABEL))
        graded = alone and bool(words & GRADED)
        odd = bool(BLOCKING & words) and not words & JUDGED and not graded
        return (
            right is not None and one is not right,
            one is not first,
            is_guessed(one.name, names) or (bool(words & PREDICTED) and known_beside),
            asked_in_words and not one.tagged,
            described == is_test(one) if asked_in_code else is_test(one),
            one.distinct < 2 < one.rows,
            one.filled < HALF,
            one.name in twins,
            not is_renewed(one.name, question),
            bool(words & OLD),
            bool(thinkers) and part_name(one.name)[:1] not in thinkers,
            bool(words & THINKING) and not sure and not alone,
            finding and not words & JUDGED,
            not (spoken and is_language(one.name)),
            known != [one],
            _is_heading(one, free),
            bool(words & MACHINES) and _has_person(one, free),
            not (one.is_prose and words <= REVISED),
            _is_result(one, free),
            _is_target(one, free),
            not sure,
            sure and simplify(one.name) not in (*ANSWERS, *PRODUCTS, *LABEL),
            not (question in one.sums and not BLOCKING & words),
            not (is_answer(one) or graded),
            hints(one, INPUT),
            not one.coded or one.is_labels or asked_in_code,
            alone and graded and not words & JUDGED,
            odd,
            one.filled < MOSTLY,
            not (one.spoken or one.cut or (alone and one.is_labels)),
            one.is_labels and not alone,
            not (one.is_prose or (alone and one.is_labels)),
            names.index(one.name) < place,
        )

    return sorted(free, key=likeliness)

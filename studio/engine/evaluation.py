"""Lets a loaded model answer a set of questions, and tells how likely it holds the given answers; into a journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from studio.core.errors import StudioError
from studio.core.i18n import Text
from studio.data.questions import QuestionRow
from studio.engine.answer_journal import AnswerJournal, ExpectedLoss, WrittenAnswer
from studio.engine.answer_losses import AnswerLoss, measure_losses, render_expected
from studio.engine.chat import Speaker
from studio.engine.generation.request import Completion

Progress = Callable[[int, int], None]


def answer_questions(
    speaker: Speaker,
    side: str,
    questions: Sequence[QuestionRow],
    journal: AnswerJournal,
    *,
    system: str,
    max_new_tokens: int,
    on_progress: Progress,
    should_stop: Callable[[], bool],
) -> dict[int, Text]:
    """Let `side` answer greedily what the journal does not hold yet.

    Returns by row why questions cannot be asked at all: they do not fit the model or its template. Raises OSError,
    torch.OutOfMemoryError.
    """
    refused: dict[int, Text] = {}
    prompts: list[list[int]] = []
    numbers: list[int] = []
    for question in questions:
        if question.number in journal.answers:
            continue
        try:
            prompts.append(
                list(question.prompt_ids) or speaker.read_prompt(put_system(question.messages, system))
            )
        except StudioError as error:
            refused[question.number] = error.what
        else:
            numbers.append(question.number)
    total = len(questions) - len(refused)
    done = total - len(numbers)
    on_progress(done, total)

    def write(place: int, completion: Completion) -> None:
        nonlocal done
        told = len(completion.log_probabilities) == len(completion.tokens)
        answer = WrittenAnswer(
            speaker.say(completion.tokens).strip(),
            len(completion.tokens),
            float(np.sum(completion.log_probabilities)) if told else None,
            str(completion.reason),
        )
        journal.add(numbers[place], "answer", answer)
        done += 1
        on_progress(done, total)

    if prompts:
        speaker.complete(prompts, side, max_new_tokens=max_new_tokens, on_end=write, should_stop=should_stop)
    return refused


def measure_expected(
    speaker: Speaker,
    side: str,
    questions: Sequence[QuestionRow],
    journal: AnswerJournal,
    *,
    system: str,
    on_progress: Progress,
    should_stop: Callable[[], bool],
) -> None:
    """Measure how likely `side` holds the given answers, where the journal does not say so yet.

    Rows without an answer, and those longer than the model can take, stay without. Raises OSError and
    torch.OutOfMemoryError.
    """
    left = [one for one in questions if one.expected is not None and one.number not in journal.losses]
    said = [one.expected if not one.prompt_ids else None for one in left]
    rows = render_expected(speaker.tokenizer, [put_system(one.messages, system) for one in left], said)
    rows = [_join_ids(one) if one.prompt_ids else row for one, row in zip(left, rows, strict=True)]

    def keep(place: int, loss: AnswerLoss) -> None:
        journal.add(left[place].number, "loss", ExpectedLoss(loss.total, loss.tokens))

    with speaker.using(side) as model:
        measure_losses(
            model,
            rows,
            pad_id=speaker.tokenizer.pad_token_id or 0,
            limit=getattr(speaker.tuned.config.get_text_config(), "max_position_embeddings", 0) or 0,
            on_loss=keep,
            on_progress=on_progress,
            should_stop=should_stop,
        )


def _join_ids(question: QuestionRow) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of question and answer, and which of them are the answer's."""
    asked, expected = question.prompt_ids, question.expected_ids
    marks = np.arange(len(asked) + len(expected)) >= len(asked)
    return np.asarray((*asked, *expected), dtype=np.int32), marks


def put_system(messages: Sequence[Mapping[str, str]], system: str) -> tuple[Mapping[str, str], ...]:
    """Return `messages` with the system prompt in front, unless they have one or there is none."""
    if not system.strip() or messages[0]["role"] == "system":
        return tuple(messages)
    return ({"role": "system", "content": system.strip()}, *messages)

"""The trial run: goes before step 1, in a minute and without a trace, through what usually breaks late.

That is: the longest rows, a short batch, an evaluation, an answer, a checkpoint and its reload, the result.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jinja2 import TemplateError

from studio.core.errors import StudioError
from studio.core.events import TrialFinished, Warned
from studio.core.facts import ModelFacts
from studio.core.i18n import Text, literal, text
from studio.core.run_record import RunRecord
from studio.data.prepare import PreparedData
from studio.data.sequence_packing import Example, cut_example
from studio.engine.oom_fallback import is_out_of_memory
from studio.engine.preflight_save import check_space, try_checkpoint, try_result
from studio.engine.rng_state import read_generators, write_generators
from studio.engine.run_folder import RunFolder
from studio.engine.save_interval import count_saves
from studio.engine.trainer import Trainer
from studio.machine.failures import diagnose
from studio.models.adapt import evaluation_mode
from studio.models.load import Loaded
from studio.planning.memory_estimate import OPTIMIZER_BYTES

BUDGET_S = 60.0
LARGE_BUDGET_S = 120.0
LARGE_PARAMETERS = 20_000_000_000
PASS_SHARE = 0.15
"""Of the budget for one pass over the longest rows: they are passed up to three times."""
COMPUTING = ("longest", "last", "evaluation", "sample")
"""Parts that are left out where hardly one more pass fits into the time: the model is far too slow here."""
WRITING = ("sample", "checkpoint", "result")
"""Parts that hang on the model, its adapter and the versions alone: engine/proof_cache.py keeps that they went well."""
WORDS_LIMIT = 300
SAMPLE_TOKENS = 4
PROMPT_TOKENS = 64
QUESTION = {"role": "user", "content": "Hello"}
ANSWER = {"role": "assistant", "content": "Hello"}


def try_out(
    trainer: Trainer,
    loaded: Loaded,
    data: PreparedData,
    facts: ModelFacts,
    record: RunRecord,
    folder: RunFolder,
    between: Callable[[], None],
    *,
    proved: bool = False,
) -> TrialFinished:
    """Go through everything once; weights, optimizer, loss scale, random generators and data order stay as they are.

    `between` is called before each part; what it raises ends the trial. `proved`: the writing parts went well in an
    earlier run of the same model, and only the disk's room is looked at. When memory runs out or a kernel fails, the
    trainer does what it does in training. Raises StudioError, or an exception that the catalogue of failures knows.
    """
    started_s = time.perf_counter()
    generators = read_generators()
    trial, left_out = Trial(trainer, loaded, data, facts, record, folder), []
    parts = {
        "rows": trial.check_rows,
        "one": trial.train_on_one,
        "longest": trial.train_on_longest,
        "last": trial.train_on_last,
        "evaluation": trial.evaluate,
        "sample": trial.sample,
        "checkpoint": trial.save_and_reload,
        "result": trial.save_result,
    }
    try:
        loaded.model.train()
        for number, (name, part) in enumerate(parts.items()):
            between()
            trainer.hooks.beat("trial", trainer.state.step, number)
            if (proved and name in WRITING) or (name in COMPUTING and trial.left_s < 2 * trial.pass_s):
                left_out.append(name)
                continue
            _say_what_broke(name, part)
        if proved:
            check_space(trainer, folder)
        too_slow = [name for name in left_out if not (proved and name in WRITING)]
        if too_slow:
            message = text(
                "trial.shortened", seconds=round(trial.pass_s), count=len(too_slow), all=len(parts)
            )
            trainer.hooks.emit(Warned(message=message))
    finally:
        shutil.rmtree(trial.place, ignore_errors=True)
        trial.reserve = None
        trainer.step.clear()
        write_generators(generators)
    on_gpu = trainer.device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()  # training begins with memory that is in one piece
    return TrialFinished(
        took_s=round(time.perf_counter() - started_s, 3),
        longest_tokens=trial.longest_tokens,
        step_s=trial.step_s,
        total_s=trial.total_s,
        peak_vram_bytes=torch.cuda.max_memory_allocated(trainer.device) if on_gpu else 0,
        left_out=tuple(left_out),
        draws=data.asked is not None,
    )


def _say_what_broke(name: str, part: Callable[[], None]) -> None:
    """Run one part; an error that nobody knows is told as what it kept from working."""
    try:
        part()
    except StudioError:
        raise
    except Exception as error:  # raised again, with words where the catalogue has none
        if diagnose(error).id != "unknown":
            raise
        why = literal(" ".join(f"{type(error).__name__}: {error}".split())[:WORDS_LIMIT])
        what, fix = text(f"trial.{name}.broke"), text(f"trial.{name}.broke.fix")
        raise StudioError(what, why, fix, exit_code=1) from error


class Trial:
    """The parts of one trial run, and what they measured."""

    def __init__(
        self,
        trainer: Trainer,
        loaded: Loaded,
        data: PreparedData,
        facts: ModelFacts,
        record: RunRecord,
        folder: RunFolder,
    ) -> None:
        self.trainer = trainer
        self.model, self.tokenizer = loaded.model, loaded.tokenizer
        self.data, self.facts, self.record, self.folder = data, facts, record, folder
        # As they are trained on: with what an objective added.
        self.train, self.validation = trainer.train_examples, trainer.validation
        self.place = (
            folder.checkpoints / ".staging-trial"
        )  # what a kill leaves there is swept at the next start
        self.budget_s = LARGE_BUDGET_S if facts.parameters > LARGE_PARAMETERS else BUDGET_S
        self.ends_s = time.perf_counter() + self.budget_s
        self.pass_s = 0.0
        """Seconds of one pass over the shortest row: no part takes less."""
        self.reserve: torch.Tensor | None = None
        self.tokens_per_s = math.inf
        self.longest_tokens = 0
        self.step_s = 0.0
        self.evaluation_s = 0.0
        self.save_s = 0.0

    @property
    def left_s(self) -> float:
        """How many seconds of its time the trial has left."""
        return self.ends_s - time.perf_counter()

    @property
    def total_s(self) -> float:
        """How long the run will take: its steps, evaluations and checkpoints; the last two also come at its end."""
        spec, steps = self.trainer.recipe.run, self.trainer.total_steps
        trained_s = self.step_s * steps
        saves = count_saves(spec, steps, trained_s)
        evaluations = steps // spec.eval_every if spec.eval_every else 0
        return trained_s + self.evaluation_s * (evaluations + 1) + self.save_s * (saves + 1)

    # What can be seen without computing ------------------------------------------------------------------------------

    def check_rows(self) -> None:
        """Refuse rows that the model cannot read, and a tokenizer that cannot end an answer."""
        config = self.model.config.get_text_config()
        positions = getattr(config, "max_position_embeddings", 0) or self.facts.max_positions
        size = self.model.get_input_embeddings().weight.shape[0]
        for where, rows in (("train", self.train), ("validation", self.validation)):
            for row in rows:
                if positions and max(row.lengths) > positions:
                    values = {"tokens": max(row.lengths), "most": positions}
                    raise self._refuse("positions", row, where=text(f"trial.where.{where}"), **values)
                if (highest := int(row.token_ids.max())) >= size:
                    token = self.tokenizer.convert_ids_to_tokens(highest)
                    values = {"token": token or "?", "number": highest, "size": size}
                    raise self._refuse("vocabulary", row, where=text(f"trial.where.{where}"), **values)
        settings = getattr(self.model, "generation_config", None)
        ends = self.tokenizer.eos_token_id, getattr(settings, "eos_token_id", None)
        if self.data.method != "pretrain" and ends == (None, None):
            name = self.facts.name
            raise StudioError(
                text("trial.no_end", name=name), text("trial.no_end.why"), text("trial.no_end.fix")
            )

    # What trains -----------------------------------------------------------------------------------------------------

    def train_on_one(self) -> None:
        """Train on the shortest row, as a batch of its own; its pace decides how much the other parts do."""
        row = [min(self.train, key=_length)]
        self.pass_s = self._quickest(lambda: self._train_on(row), once=self.trainer.device.type == "cuda")
        self.tokens_per_s = _length(row[0]) / self.pass_s
        self.longest_tokens = _length(row[0])
        self._reckon_step(self.tokens_per_s)

    def train_on_longest(self) -> None:
        """Train on a full micro-batch of the longest rows, beside as much memory as the optimizer will take."""
        kind = self.trainer.kind[0]
        # A paged optimizer's moments go to main memory when need be.
        width = 0 if kind.startswith("paged") else OPTIMIZER_BYTES.get(kind, 0)
        if self.trainer.device.type == "cuda":
            size_bytes = width * sum(parameter.numel() for parameter in self.trainer.trained)
            self.reserve = torch.empty(size_bytes, dtype=torch.uint8, device=self.trainer.device)
        micro_batch = self.trainer.state.micro_batch
        longest = sorted(self.train, key=_length, reverse=True)[:micro_batch]
        rows = self._fit(longest)
        self.longest_tokens = _length(rows[0])
        self._reckon_step(sum(map(_length, rows)) / self._quickest(lambda: self._train_on(rows)))

    def _reckon_step(self, tokens_per_s: float) -> None:
        """Reckon how long a step takes when all its rows are as long as the longest."""
        per_step = min(self.trainer.order.per_step, len(self.train))
        self.step_s = max(map(_length, self.train)) * per_step / tokens_per_s

    def train_on_last(self) -> None:
        """Train on the micro-batch that is left over at the end of a pass over the data, where there is one."""
        order, trainer = self.trainer.order, self.trainer
        window = [self.train[i] for i in order.indices(order.steps_per_epoch - 1)]
        window.sort(key=_length, reverse=True)
        rows = trainer.step.cut(window, trainer.state.micro_batch, trainer.longest_tokens)[-1]
        if len(rows) > 1:  # one row alone was tried
            self._train_on(self._fit(rows))

    def _train_on(self, rows: list[Example]) -> None:
        """Forward and backward over `rows` as in a step of training; both must give numbers."""
        trainer = self.trainer
        loss = float(trainer.take_gradients(rows, phase="trial")[0])
        if not math.isfinite(loss):
            raise self._refuse_numbers("loss", rows[0])
        # With loss scaling an overflow of the gradients is the scaler finding its range.
        if not trainer.scaler.is_enabled():
            gradients = [parameter.grad for parameter in trainer.trained if parameter.grad is not None]
            if not all(torch.isfinite(gradient).all() for gradient in gradients):
                raise self._refuse_numbers("gradient", rows[0])
        trainer.step.clear()

    def evaluate(self) -> None:
        """Evaluate the longest validation rows, as many as an evaluation takes at once."""
        if not self.validation:
            return
        longest = sorted(self.validation, key=_length, reverse=True)
        rows = self._fit(longest[: self.trainer.evaluation_batch])

        def attempt() -> None:
            if not math.isfinite(self.trainer.evaluate(rows, phase="trial").loss):
                raise self._refuse_numbers("loss", rows[0])

        tokens_per_s = sum(map(_length, rows)) / self._quickest(attempt)
        self.evaluation_s = sum(map(_length, longest)) / tokens_per_s

    # What writes -----------------------------------------------------------------------------------------------------

    def sample(self) -> None:
        """Let the model write a few tokens, to a question in its chat template where it has one."""
        trainer = self.trainer
        words = self._ask([QUESTION]) if self.tokenizer.chat_template else None
        if words is not None:
            self._ask([QUESTION, ANSWER, QUESTION])
            ids = self.tokenizer(words, add_special_tokens=False)["input_ids"]
        else:
            ids = self.train[0].token_ids[: self.train[0].lengths[0]].tolist()
        prompt = torch.tensor([ids[:PROMPT_TOKENS]], device=trainer.device)

        lowered = trainer.autocast_dtype
        cast = torch.autocast(trainer.device.type, dtype=lowered or torch.bfloat16, enabled=bool(lowered))

        def write() -> torch.Tensor:
            with torch.no_grad(), evaluation_mode(self.model), cast:
                return self.model.generate(
                    input_ids=prompt,
                    attention_mask=torch.ones_like(prompt),
                    max_new_tokens=SAMPLE_TOKENS,
                    max_time=max(1.0, min(PASS_SHARE * self.budget_s, self.left_s)),
                    do_sample=False,
                    pad_token_id=self.tokenizer.pad_token_id,
                )

        if self._recovering(write).shape[1] <= prompt.shape[1]:
            what, why = text("trial.sample.broke"), text("artifact.silent.why")
            raise StudioError(what, why, text("trial.sample.broke.fix"), exit_code=1)

    def _ask(self, turns: list[dict[str, str]]) -> str | None:
        """Return a conversation up to the next answer; a template that refuses it is told, and None returned.

        The rows that are trained on went through the template before, so this is no reason not to train.
        """
        try:
            return self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        except (TemplateError, TypeError, ValueError, LookupError) as error:
            reason = literal(str(error)[:WORDS_LIMIT])
            message = text("trial.template", number=(len(turns) + 1) // 2, reason=reason)
            self.trainer.hooks.emit(Warned(message=message))
            return None

    def save_and_reload(self) -> None:
        """Write a checkpoint the way that training does, read it back and compare it."""
        self.save_s = try_checkpoint(self.trainer, self.folder, self.place)

    def save_result(self) -> None:
        """Write the result as it is after training."""
        try_result(self.model, self.tokenizer, self.facts, self.record, self.place)

    # What they share -------------------------------------------------------------------------------------------------

    def _recovering(self, attempt: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return what `attempt` returns, again after each kernel whose op could go over to its PyTorch twin."""
        while True:
            try:
                return attempt()
            except Exception as error:  # recover() decides: it returns False for all it does not know
                # A smaller micro-batch would not help what needs no gradients.
                if is_out_of_memory(error) or not self.trainer.hooks.recover(error, self.trainer.state):
                    raise

    def _quickest(self, attempt: Callable[[], None], *, once: bool = False) -> float:
        """Return the seconds of `attempt`; of a short one those of a second, as the first compiles and allocates.

        `once`: the first will do, where the pace decides on nothing.
        """
        taken_s: list[float] = []
        while not taken_s or (
            len(taken_s) < 2 and not once and taken_s[0] < min(PASS_SHARE * self.budget_s, self.left_s / 4)
        ):
            started_s = time.perf_counter()
            attempt()
            if self.trainer.device.type == "cuda":
                torch.cuda.synchronize(self.trainer.device)
            taken_s.append(time.perf_counter() - started_s)
        return min(taken_s)

    def _fit(self, rows: Sequence[Example]) -> list[Example]:
        """Return as many of `rows` (longest first), and as much of them, as one pass can take by the measured pace.

        On a GPU all of them: a few rows take seconds there, and what counts is whether they fit.
        """
        most = self.tokens_per_s * PASS_SHARE * self.budget_s
        if self.trainer.device.type != "cpu" or _length(rows[0]) * len(rows) <= most:
            return list(rows)
        rows = rows[: max(1, int(most // _length(rows[0])))]
        sequences = self.trainer.step.objective.sequences
        return [_cut(row, max(PROMPT_TOKENS, int(most / len(rows))), sequences) for row in rows]

    def _refuse(self, kind: str, row: Example, **values: object) -> StudioError:
        values["beginning"] = self._beginning(row)
        return StudioError(*(text(f"trial.{kind}{part}", **values) for part in ("", ".why", ".fix")))

    def _refuse_numbers(self, kind: str, row: Example) -> StudioError:
        """Return the refusal of a loss or gradient that is no number: damaged weights, or too small a range."""
        broken = next((name for name, p in self.model.named_parameters() if not _is_finite(p)), None)
        what = text(f"trial.{kind}", tokens=_length(row), beginning=self._beginning(row))
        if broken is not None:
            why, fix = text("trial.numbers.weights", name=broken), text("trial.numbers.weights.fix")
        else:
            dtype = self.trainer.kind[1]
            why = text("trial.numbers.range", dtype=dtype)
            fix = text("trial.numbers.range.fix" if dtype != "fp32" else "trial.numbers.row.fix")
        return StudioError(what, why, fix, exit_code=1)

    def _beginning(self, row: Example) -> Text:
        words = self.tokenizer.decode([i for i in row.token_ids[:24].tolist() if i < len(self.tokenizer)])
        return literal(" ".join(words.split())[:60])


def _is_finite(parameter: torch.Tensor) -> bool:
    return not parameter.is_floating_point() or bool(torch.isfinite(parameter).all())


def _length(row: Example) -> int:
    return len(row.token_ids)


def _cut(row: Example, most: int, sequences: int) -> Example:
    """Return the first `most` tokens of `row`; of sequences that are compared as many of each as of the others.

    Where nothing of them is learned, all of them are.
    """
    if sequences > 1:
        row = _cut_each(row, max(2, most // len(row.lengths)))
    parts = row.lengths if sequences > 1 else (min(most, len(row.token_ids)),)
    trained, start = row.trained[: sum(parts)].copy(), 0
    for length in parts:
        if not trained[start + 1 : start + length].any():
            trained[start + 1 : start + length] = True
        start += length
    return cut_example(row, len(trained), trained)


def _cut_each(row: Example, most: int) -> Example:
    """Return the first `most` tokens of each sequence of `row`."""
    kept = np.concatenate([np.arange(length) < most for length in row.lengths])
    arrays = {
        name: getattr(row, name) for name in ("token_ids", "trained", "weights", "reference", "answers")
    }
    shorter = {name: values[kept] for name, values in arrays.items() if values is not None}
    return dataclasses.replace(row, lengths=tuple(min(length, most) for length in row.lengths), **shorter)

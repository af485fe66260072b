"""Micro-batches by the studio's own decoder: documents without padding between them, small ones by recorded graphs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from studio_kernels.adamw import Steps
from studio_kernels.attention import Documents
from studio_kernels.shared_beginnings import SharedBeginnings
from torch import Tensor

from studio.data.common_beginnings import count_once, find_longest
from studio.data.sequence_packing import Example, measure_lengths
from studio.engine.batches import PAD_MULTIPLE, RowSizes, cut_in_order, cut_stream, pick_values
from studio.engine.objectives.objective import Objective, Picked, Terms, TokenObjective
from studio.engine.token_stream import (
    TokenStream,
    group_by_prompt,
    join_apart,
    join_beside,
    join_shared,
    pair_up,
)
from studio.engine.train_step import Scale, sort_places, sum_terms
from studio.models.decoder.batch_layout import BatchLayout
from studio.models.decoder.beginnings import as_shared
from studio.models.decoder.blocks.attention import SelfAttention
from studio.models.decoder.blocks.gated_mlp import GatedMLP
from studio.models.decoder.cuda_graphs import SIZE_STEP_TOKENS, GraphedDecoder, Shapes, choose_sizes
from studio.models.decoder.decoder import Decoder
from studio.models.decoder.host_to_device import Staging, split_rows
from studio.models.decoder.row_judge import RowJudge
from studio.planning.memory_estimate import is_small


class DecoderStep:
    """Computes with `decoder`, rows behind each other; its flat buffers are the optimizer's parameters."""

    kind = "decoder"

    def __init__(
        self,
        decoder: Decoder,
        *,
        objective: Objective,
        pad_id: int,
        packing: bool = True,
        shares_prompts: bool = False,
    ) -> None:
        """`packing`: a micro-step takes as many rows as memory does; else no more than were planned, however short.

        `shares_prompts`: what the sequences of an example, or answers to a prompt, begin with is computed once
        (token_stream.py).
        """
        self.decoder = decoder
        # Behind a softcap k: k tanh(u / k) / T is (k / T) tanh((u / T) / (k / T)).
        spec, t = decoder.spec, objective.temperature
        decoder.head_scales = spec.logit_scale / t, spec.softcap / t
        decoder.score = spec.score if objective.scores else None
        self.objective = objective
        self._packing = packing
        # A mixer of the model's own reads a text from its first token on.
        several = objective.sequences > 1 or objective.answers_again
        self._shares = shares_prompts and several and not decoder.spec.mixers
        self._by_prompt = self._shares and objective.answers_again
        self.pad_id = pad_id
        self.device = decoder.device
        self._records = self.device.type == "cuda"
        self.capability = torch.cuda.get_device_capability(self.device) if self._records else (0, 0)
        self.pad_multiple = PAD_MULTIPLE.get(self.device.type, PAD_MULTIPLE["cpu"])
        store = decoder.store
        parts = [_as_parameter(store.weights[part], store.gradients[part]) for part in store.parts]
        self.decayed, self.undecayed, *tables, self.beside_undecayed = parts
        self.beside = [parameter for table in tables for parameter in table]
        self._drops = any(group.dropout for layer in decoder.layers for group in layer.groups)
        plain = all(
            type(one.attention) is SelfAttention and type(one.mlp) is GatedMLP and one.layer_input is None
            for one in decoder.layers
        )
        plain &= decoder.inputs is None and decoder.ends is None and not decoder.rotary.length_dependent
        decoder.takes_along = plain and not self._drops and objective.measures_beside
        self._operations_a_token = 6 * sum(layer.weights_a_token for layer in decoder.layers)
        self._windows: Sequence[RowSizes] = ()
        self._steps = 0
        self._shapes: tuple[int, Shapes | None] = (0, None)
        self._graphs: tuple[int, GraphedDecoder] | None = None
        self._staging = Staging(self.device)

    @property
    def expects_sequences(self) -> int:
        """See Step: of what is never recorded no sizes are needed."""
        return self.objective.sequences if self._shares and not self._by_prompt and self._records else 1

    def expect(self, windows: Sequence[RowSizes], steps: int) -> None:
        """See Step: by these sizes it is decided which shapes are recorded."""
        self._windows, self._steps = windows, steps
        self._shapes = (0, None)
        self.drop_graphs()

    def cut(self, window: Sequence[Example], most_rows: int, longest_tokens: int) -> list[list[Example]]:
        """See Step."""
        most_tokens = most_rows * longest_tokens
        if most_tokens != self._shapes[0]:
            self._shapes = most_tokens, self._choose_shapes(most_rows, most_tokens)
            self.drop_graphs()
        window = [window[i] for i in self.order(window)] if self._by_prompt else window
        # Of answers in examples of their own all tokens are counted: attention has rows for as many.
        sequences = self.objective.sequences
        lengths = [
            count_once(example, sequences) if self._shares else len(example.token_ids) for example in window
        ]
        return [[window[row] for row in stream] for stream in self._cut(lengths, most_rows, most_tokens)]

    def order(self, examples: Sequence[Example]) -> list[int]:
        """See Step: answers to a prompt stand together where they share it."""
        longest_first = sort_places(examples)
        if not self._by_prompt:
            return longest_first
        groups = group_by_prompt([examples[i] for i in longest_first])
        return [longest_first[i] for group in groups for i in group]

    def find_longest(self, examples: Sequence[Example]) -> int:
        """See Step."""
        if self._shares:
            return find_longest(examples, self.objective.sequences)
        return int(measure_lengths(examples).max(initial=1))

    def _cut(self, lengths: Sequence[int], most_rows: int, most_tokens: int) -> list[list[int]]:
        """Return which rows go together, of rows of these lengths."""
        if self._packing:
            return (cut_in_order if self._by_prompt else cut_stream)(lengths, most_tokens)
        return [
            list(range(len(lengths)))[start : start + most_rows]
            for start in range(0, len(lengths), most_rows)
        ]

    @property
    def kernels(self) -> Mapping[str, str]:
        """See Step."""
        return self.decoder.kernels.implementations

    def adamw(self) -> Steps:
        """See Step: the op as the decoder's kernels are bound now."""
        return self.decoder.kernels.adamw

    def measures(self, examples: Sequence[Example]) -> bool:
        """See Step: of companions that go along; a recorded step is faster beside a pass of theirs."""
        measured = self.decoder.takes_along and self._graph() is None
        return measured and all(one.companion is not None for one in examples)

    def clear(self) -> None:
        """See Step."""
        self.decoder.store.clear_gradients()
        self.decoder.note_change()

    def add_gradients(self, examples: Sequence[Example], count: float, scale: Scale) -> Tensor:
        """See Step."""
        factor = scale(torch.full((), 1.0 / count, dtype=torch.float32, device=self.device))
        seed = int(torch.randint(2**62, ())) if self._drops else 0
        judge, picked = None, self._send_picked(examples)
        if examples[0].window is None and self.measures(examples):
            beside = self._send_picked([one.companion for one in examples])
            judge = _Judge(self.objective, picked, factor, beside)
            away = torch.full((), -1.0, device=self.device)
            self.decoder.add_gradients(*self._place_beside(examples), away, judge)
            return sum_terms(judge.terms, self.objective, count)
        if isinstance(self.objective, TokenObjective):
            factors = factor if picked.weights is None else factor * picked.weights
        else:  # the head gives lp and dlp/dh: the objective says by how much the gradient is wrong
            judge = _Judge(self.objective, picked, factor)
            factors = torch.full((), -1.0, device=self.device)
        losses = self._compute(examples, seed, factors, judge)
        if judge is not None:
            return sum_terms(judge.terms, self.objective, count)
        if not self.objective.metrics and picked.weights is None:
            return (losses.sum() / factor / count)[None]
        # A factor that float32 cannot hold is 0, and so is its loss.
        losses = torch.where(factors == 0, 0.0, losses / factors)
        return sum_terms(self.objective.loss(-losses, picked), self.objective, count)

    def _compute(
        self, examples: Sequence[Example], seed: int, factors: Tensor, judge: RowJudge | None
    ) -> Tensor:
        """Add gradients as Decoder.add_gradients() does, by a recorded graph where there is one."""
        graph = self._graph()
        if graph is not None:
            one = self._join(examples, 1)
            size = graph.fit(one.lengths, one.beginnings) if len(one.picks) else 0
            if size:
                given = {
                    "size": size,
                    "scale": factors,
                    "judge": judge,
                    "seed": seed,
                    "begun": one.beginnings,
                }
                return graph.add_gradients(one.ids, one.lengths, one.picks, one.targets, **given)
        return self.decoder.add_gradients(*self._place(examples, seed), factors, judge)

    def evaluate(self, examples: Sequence[Example]) -> Tensor:
        """See Step."""
        terms = self.objective.loss(self.log_probabilities(examples), self._send_picked(examples))
        return sum_terms(terms, self.objective)

    def log_probabilities(self, examples: Sequence[Example]) -> Tensor:
        """See Step."""
        self.decoder.note_change()
        return -self.decoder.token_losses(*self._place(examples))

    def _send_picked(self, examples: Sequence[Example]) -> Picked:
        values = pick_values(examples, self.objective)
        return (
            Picked(**dict(zip(values, self._staging.send((*values.values(),)), strict=True)))
            if values
            else Picked()
        )

    def drop_graphs(self) -> None:
        """Let go of what is recorded, and of its memory; it is recorded anew when next needed."""
        self._graphs = None

    def _join(self, examples: Sequence[Example], multiple: int = 0) -> TokenStream:
        """Return the stream of `examples`, filled up to a multiple of `multiple` rows; 0: of what the device likes."""
        multiple = multiple or self.pad_multiple
        if self._shares:
            by_prompt = self._by_prompt
            groups = group_by_prompt(examples) if by_prompt else pair_up(examples, self.objective.sequences)
            return join_shared(examples, groups, self.pad_id, multiple)
        return join_apart(examples, self.pad_id, multiple)

    def _place(
        self, examples: Sequence[Example], seed: int | None = None
    ) -> tuple[Tensor, BatchLayout, Tensor, Tensor]:
        """Return tokens, rows, picks and targets on the device, by one copy; `seed` draws what is dropped."""
        stream = self._join(examples)
        lengths, begun = stream.lengths, stream.beginnings
        drawn = np.array([seed or 0], dtype=np.int64)
        arrays = [stream.ids, stream.picks, stream.targets, drawn, *split_rows(lengths)]
        if begun is not None:
            arrays += begun.arrays
        tokens, picks, targets, drawn, starts, positions, *more = self._staging.send(arrays)
        documents = _make_documents(lengths, starts, positions, as_shared(*more) if more else None)
        rows = self.decoder.make_rows(documents, drawn[0] if self._drops and seed is not None else None)
        return tokens, rows, picks, targets

    def _place_beside(self, examples: Sequence[Example]) -> tuple[Tensor, BatchLayout, Tensor, Tensor]:
        """Return the same of `examples` with their companions behind them, of which no layer keeps anything."""
        stream = join_apart(examples, self.pad_id, self.pad_multiple)
        more = join_beside(examples, len(stream.ids), self.pad_id, self.pad_multiple)
        arrays = [
            np.concatenate([getattr(one, name) for one in (stream, more)])
            for name in ("ids", "picks", "targets")
        ]
        arrays += [*split_rows(stream.lengths), *split_rows(more.lengths), *more.beginnings.arrays]
        tokens, picks, targets, *sent = self._staging.send(arrays)
        beside = _make_documents(more.lengths, *sent[2:4], as_shared(*sent[4:]))
        documents = _make_documents(stream.lengths, *sent[:2])
        rows = self.decoder.make_rows(dataclasses.replace(documents, beside=beside))
        return tokens, rows, picks, targets

    def _choose_shapes(self, most_rows: int, most_tokens: int) -> Shapes | None:
        """Return the shapes that micro-steps of at most so many tokens are recorded in, None where none is."""
        if self._by_prompt:  # which answers meet in a micro-step is not known before they are drawn
            return None
        counts, repeated, documents, longest, shortest = [], [], 1, 1, math.inf
        for rows in self._windows:
            for stream in self._cut(rows.once, most_rows, most_tokens):
                counts.append(sum(rows.once[row] for row in stream))
                repeated.append(sum(rows.lengths[row] for row in stream) - counts[-1])
                documents = max(documents, sum(rows.documents[row] for row in stream))
            longest, shortest = max(longest, *rows.longest), min(shortest, *rows.longest)
        small = self._records and is_small(self._operations_a_token, max(counts, default=0), self.capability)
        if not counts or not small or self.decoder.rotary.hangs_on_length(longest, self.device):
            return None  # a recording has the angles of the longest document
        uniform = (
            longest == shortest
            and documents * longest >= max(counts)
            and not (longest % SIZE_STEP_TOKENS or self._shares)
        )
        if uniform:
            return Shapes(
                sizes=tuple(sorted(set(counts))), documents=documents, longest=longest, uniform=True
            )
        steps = self._steps * len(counts) // len(self._windows)
        sizes = choose_sizes(counts, steps)
        if not self._shares:
            return Shapes(sizes=sizes, documents=documents, longest=longest)
        most = [max((r for c, r in zip(counts, repeated, strict=True) if c <= s), default=0) for s in sizes]
        spare = tuple((one // SIZE_STEP_TOKENS + 1) * SIZE_STEP_TOKENS for one in most)
        rounds = self.objective.sequences - 1
        return Shapes(sizes=sizes, documents=documents, longest=longest, spare=spare, rounds=rounds)

    def _graph(self) -> GraphedDecoder | None:
        """Return the recorder, a new one when policy or kernels have changed since; None where nothing is recorded."""
        shapes, decoder = self._shapes[1], self.decoder
        if shapes is None or any(policy.offload for policy in decoder.policy.layers):
            return None
        if not decoder.recordable:
            return None
        now = hash((decoder.policy, tuple(decoder.kernels.implementations.items())))
        if self._graphs is None or self._graphs[0] != now:
            self._graphs = None  # lets go of the old graphs' memory first
            self._graphs = now, GraphedDecoder(decoder, shapes)
        return self._graphs[1]


class _Judge:
    """Asks an objective what the log-probabilities of a micro-batch are worth, between the head's two directions."""

    def __init__(
        self, objective: Objective, picked: Picked, factor: Tensor, beside: Picked | None = None
    ) -> None:
        """`beside`: of companions, whose log-probabilities come behind the others and have no gradient."""
        self.objective, self.picked, self.factor, self.beside = objective, picked, factor, beside
        self.wants_entropy = objective.wants_entropy
        self.terms: Terms | None = None

    def __call__(self, log_probabilities: Tensor, entropies: Tensor | None) -> Tensor:
        picked = dataclasses.replace(self.picked, entropies=entropies)
        more = 0
        if self.beside is not None:
            more = len(self.beside.reference)
            log_probabilities, others = log_probabilities.split([len(log_probabilities) - more, more])
            measured = self.objective.measure_beside(others, self.beside)
            picked = dataclasses.replace(picked, window=measured)
        self.terms = self.objective.loss(log_probabilities, picked)
        return F.pad(self.terms.gradient * self.factor, (0, more))


def _make_documents(
    lengths: tuple[int, ...], starts: Tensor, positions: Tensor, shared: SharedBeginnings | None = None
) -> Documents:
    return Documents(
        lengths=lengths,
        starts=starts,
        positions=positions,
        uniform=lengths[0] if len(set(lengths)) == 1 else None,
        longest=max(lengths),
        shared=shared,
    )


def _as_parameter(weights: Tensor, gradients: Tensor) -> list[torch.nn.Parameter]:
    """Return a part of a flat buffer as the optimizer takes it; none where it is empty."""
    if not len(weights):
        return []
    parameter = torch.nn.Parameter(weights)
    parameter.grad = gradients
    return [parameter]

"""Proves on the spot that our decoder computes what the model's own code does, held against fp32, on real text.

Two questions, each about a layer's result, its input's gradient and every gradient that it adds to:
- is it the same arithmetic? Our code in fp32 and the model's own in fp32, on the same weights, are equal but for
  rounding: what a wrong eps, window or table changes stands out there, and drowns in 16 bits;
- is it as exact? In the run's dtype, with the run's kernels, our error against fp32 is little more than that of the
  model's own code: its own rounding is large where activations are, so no fixed limit fits trained weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from studio_kernels.attention import Documents
from studio_kernels.dispatch import bind
from torch import Tensor, nn
from torch.nn import functional

from studio.core.i18n import Text, text
from studio.models.adapt import evaluation_mode
from studio.models.decoder.batch_layout import BatchLayout
from studio.models.decoder.beside_weights import BesideStore
from studio.models.decoder.decoder import Decoder
from studio.models.decoder.ends_check import compare_ends, compare_rows
from studio.models.decoder.flat_weights import WholeStore, norms_of
from studio.models.decoder.fp32_reference import (
    Wide,
    run_finer,
    run_head,
    run_module,
    widen,
    widen_layer,
    without_tf32,
)
from studio.models.decoder.layer import Layer, kind_of
from studio.models.decoder.probe_adapters import leave_gradients, stir_adapters
from studio.models.decoder.probe_beside import BesideRows, share_inputs
from studio.models.decoder.probe_states import LENGTHS, LENT, Stream, find_window, make_ids, read
from studio.models.decoder.rotary import NO_ROTARY, as_tables, to_halves
from studio.models.decoder.route_check import compare_experts, find_agreed, judge_routes
from studio.models.decoder.stream_form import module_of_rows
from studio.models.decoder.stream_probe import compare_streams, gather_wide
from studio.models.decoder.tolerance import (
    TIMES_FINER,
    TIMES_LOOSE,
    TRUSTED,
    TRUSTED_DEPTH,
    Judge,
    Measured,
    errors_of,
    further,
    judge_equal,
    nudge,
)

ALL_WEIGHTS = 2 * 10**9
"""Every layer is looked at where all of them hold no more weights: some 20 ms a layer, so below a second."""
LARGEST_LAYERS = 2
"""Beyond that one of each kind, the first, the last and so many with the largest activations."""
LIMIT_TOKENS = 131072
"""The last document stands at the end of the model's positions, but not beyond this: tables take 1 KB a position."""
FP16_LARGEST = 8
"""fp16 ends at 2^16: the largest gradient that is compared is about 2^8."""
HEAD_SCALE, HEAD_STEP = 64.0, 4
"""The head is compared on every fourth row, its gradient with such a loss scale."""
WINDOW_TOKENS = 1024
"""A window up to this size, or the chunk of a delta rule, is exceeded by a text of its own; of larger ones only the
number is compared."""


def find_difference(
    model: nn.Module,
    decoder: Decoder,
    autocast: torch.dtype | None,
    texts: Sequence[Sequence[int]] | None = None,
) -> Text | None:
    """Return what `decoder` computes otherwise than `model`, whose arithmetic it took over, or None.

    `texts`: token ids of real text (see reading.sample_ids); None: drawn ones. Random state, gradients, adapters and
    training mode are left as found. A kernel that fails raises.
    """
    wrong = next((found for found in measure(model, decoder, autocast, texts) if not found.ok), None)
    if wrong is None:
        return None
    return text("model.decoder.mismatch", layer=wrong.layer, part=wrong.part, error=wrong.ours, own=wrong.own)


def measure(
    model: nn.Module,
    decoder: Decoder,
    autocast: torch.dtype | None,
    texts: Sequence[Sequence[int]] | None = None,
) -> Iterator[Measured]:
    """Give all comparisons, one after another."""
    device, store = decoder.device, decoder.store
    devices = range(torch.cuda.device_count()) if device.type == "cuda" else ()
    held = store.holding(store.rounded) if isinstance(store, WholeStore) else stir_adapters(decoder)
    tables = store.holding_rounded() if isinstance(store, BesideStore) else nullcontext()
    with (
        torch.random.fork_rng(devices=devices),
        evaluation_mode(model),
        leave_gradients(store.gradients),
        held,
        tables,
    ):
        yield from _Probe(model, decoder, autocast, texts).compare()


class _Probe:
    """One model, read once; its layers are compared one after another, at most one of them held in fp32."""

    def __init__(
        self,
        model: nn.Module,
        decoder: Decoder,
        autocast: torch.dtype | None,
        texts: Sequence[Sequence[int]] | None,
    ) -> None:
        self.model, self.decoder, self.autocast, self.device = model, decoder, autocast, decoder.device
        self.config = config = model.config.get_text_config()
        self.dtype = decoder.dtype
        self.exact = all(group.weights.exact for layer in decoder.layers for group in layer.groups)
        groups = [group for layer in decoder.layers for group in layer.groups]
        rescaled = any(group.magnitudes is not None for group in groups)
        self.judge = Judge(self.dtype, self.exact, decoder.routed, rescaled)
        self.wide_kernels = bind({})
        tokens = max(LENGTHS) + 1
        ids = make_ids(texts, config.vocab_size, tokens).to(self.device)
        self.text = Stream(read(model, decoder.spec, ids, autocast), LENGTHS)
        self.long = None
        windows = [w for layer in decoder.layers if tokens < (w := layer.spec.seen) <= WINDOW_TOKENS]
        if windows:
            ids = make_ids(texts, config.vocab_size, max(windows) // len(LENGTHS) + tokens).reshape(1, -1)
            self.long = Stream(read(model, decoder.spec, ids.to(self.device), autocast), (ids.numel(),))
        self.rows = replace(decoder.make_rows(Documents.of(LENGTHS, self.device)), mlp_rows=0)
        limit = min(int(getattr(config, "max_position_embeddings", 0) or tokens), LIMIT_TOKENS)
        self.positions = torch.arange(tokens, device=self.device).repeat(len(LENGTHS), 1)
        self.far = self.positions.clone()
        self.far[-1] += max(0, limit - tokens)
        self.far_tables = decoder.make_tables(max(tokens, limit))

    def compare(self) -> Iterator[Measured]:
        """Give all comparisons."""
        yield from self._compare_rows()
        yield from compare_streams(self)
        chosen, first = self._choose()
        own, exact = (self.text.options_at(self.far, dtype) for dtype in (self.dtype, torch.float32))
        plain = self.text.options_at(None, torch.float32)
        rows = replace(self.rows, tables=self.far_tables, positions=self.text.cut(self.far).to(torch.int32))
        x = self.text.inputs[0].float()
        like = self.text.cut(x)
        self.rows.shared.start(share_inputs(self.text, plain))
        lent: dict = {}
        for options in plain:  # each layer of the truth reads what those before it have made
            if options.get(LENT) is not None:
                options[LENT] = lent
        for number, layer in enumerate(self.decoder.layers):
            yield from self._compare_constants(number, layer, plain[number])
            wide = Wide(module_of_rows(layer.spec), self.dtype)
            with without_tf32(), torch.no_grad():
                x = wide.forward(x, plain[number])
            if number in chosen:
                given = (own[number], exact[number])
                yield from self._compare_layer(number, layer, wide, self.text, given, rows)
            if self.long is not None and layer.spec.seen and number in first:
                given = tuple(self.long.options_at(None, d)[number] for d in (self.dtype, torch.float32))
                long_rows = self.decoder.make_rows(Documents.of(self.long.lengths, self.device))
                yield from self._compare_layer(
                    number, layer, wide, self.long, given, replace(long_rows, mlp_rows=0)
                )
            if not self.exact:
                like = self.widen(layer, fp8=True).forward(like, self.rows, self.wide_kernels, None)[0]
        yield from self._compare_head()
        last = gather_wide(self.decoder.ends, self.dtype, self.text.cut(x), like)
        yield from self._compare_all(last[0], None if self.exact else last[1])

    def _choose(self) -> tuple[set[int], set[int]]:
        """Return which layers are looked at forward and backward, and the first of each kind."""
        layers, kinds = self.decoder.layers, {}
        for number, layer in enumerate(layers):
            kinds.setdefault(kind_of(layer), number)
        first = set(kinds.values())
        if sum(layer.weights for layer in layers) <= ALL_WEIGHTS:
            return set(range(len(layers))), first
        sizes = torch.stack([x.abs().max() for x in self.text.inputs[:-1]])
        largest = sizes.topk(min(LARGEST_LAYERS, len(layers))).indices.tolist()
        return {*first, *largest, 0, len(layers) - 1}, first

    # -- what is equal or not ------------------------------------------------------------------------------------

    def _compare_rows(self) -> Iterator[Measured]:
        """The embedding, and where each row stands."""
        ids, last = self.text.cut(self.text.ids), len(self.decoder.layers)
        ours = self.decoder.embedding.forward(ids)
        yield judge_equal(0, "embedding", ours, self.text.cut(self.text.inputs[0][..., : ours.shape[1]]))
        if self.decoder.inputs is not None:
            made = share_inputs(self.text, self.text.options)
            yield judge_equal(0, "layer inputs", self.decoder.inputs.forward(ids, ours), made)
        yield judge_equal(0, "positions", self.rows.positions, self.text.cut(self.positions))
        starts = torch.tensor((0, *LENGTHS), device=self.device).cumsum(0)
        yield judge_equal(0, "documents", self.rows.documents.starts, starts)
        assert len(self.text.inputs) == last + 1, "the model computes other layers than it shows"

    def _compare_constants(self, number: int, layer: Layer, given: dict) -> Iterator[Measured]:
        """The window and the rotary tables: neither shows in every text."""
        if layer.spec.attends:
            window = find_window((self.long, self.text), self.config, number)
            ours = layer.attention.kernel.heads.window
            yield Measured(number, "window", float(ours), float(window), ours == window)
        table = given.get("position_embeddings")
        if table is None or layer.spec.rotary == NO_ROTARY:
            return
        mine = self.rows.tables[layer.spec.rotary]
        for name, one, theirs in zip(("cos", "sin"), mine, as_tables(table), strict=True):
            theirs = to_halves(theirs[-1])[: len(one)]  # longrope makes no table longer than the documents
            yield judge_equal(number, name, one[: theirs.shape[0]], theirs)

    # -- layers --------------------------------------------------------------------------------------------------

    def widen(self, layer: Layer, fp8: bool = False) -> Layer:
        """Return our layer in fp32."""
        return widen_layer(layer, self.decoder.kernels, self.wide_kernels, fp8=fp8)

    def _compare_layer(
        self, number: int, layer: Layer, wide: Wide, stream: Stream, given: tuple[dict, dict], rows: BatchLayout
    ) -> Iterator[Measured]:  # fmt: skip
        x = stream.inputs[number].to(self.dtype)  # some models' norms leave a wider one in the stream
        trained = {name: p for name, p in layer.spec.module.named_parameters() if p.requires_grad}
        kind = (getattr(self.config, "layer_types", None) or [""] * (number + 1))[number]
        beside, exact = (BesideRows(stream, layer.spec, kind, one) for one in given)
        names, parameters = ["y", "dx", *trained, *beside.leaves], list(trained.values())
        count = 2 + len(parameters)

        def cut(results: list[Tensor]) -> list[Tensor]:
            y, dx = stream.cut(results[0]) * shown, stream.cut(results[1])
            return [y, dx, *results[2:count], *beside.cut(results[count:])]

        generator = torch.Generator().manual_seed(number)
        dy = torch.randn(sum(stream.lengths), x.shape[2], generator=generator).to(self.device)
        shown: Tensor | float = 1.0
        if layer.spec.experts is not None:
            yield from compare_experts(self, number, layer, wide, stream.cut(x), parameters, names)
            agreed = find_agreed(self, layer, wide, stream, x, given, rows)
            yield from judge_routes(number, agreed, self.dtype)
            # A row whose scores are equal but for rounding may go either way: it says nothing of the arithmetic.
            dy *= agreed.all_ways[:, None]
            shown = agreed.all_ways[:, None]
        with without_tf32():
            heard = [*parameters, *exact.leaves.values()]
            truth = cut(wide.run(x.float(), stream.spread(dy), exact.given, heard))
        factor = 1.0
        if self.dtype == torch.float16:  # as a loss scale does: no gradient beyond its numbers
            factor = 2.0 ** (FP16_LARGEST - max(t.abs().max() for t in truth[1:]).log2().ceil()).item()
            dy, truth = dy * factor, [truth[0], *(t * factor for t in truth[1:])]
        rows_of_x = stream.cut(x)
        if not self.exact:
            eight = self._run(
                self.widen(layer, fp8=True), rows_of_x, dy, rows, "all", parameters, shown, exact, fp32=True
            )
            plain = cut(self._run_model(wide.source, stream, x, dy, beside, parameters))
            own = further(eight, plain, truth)
        elif self.dtype == torch.float32 and self.device.type == "cpu":
            own = truth
        else:
            own = cut(self._run_model(wide.source, stream, x, dy, beside, parameters))
        # Which of nearly equal values pass a gate that is cut is chance.
        for near in nudge(x) if layer.spec.gate_cut is not None and own is not truth else ():
            own = further(own, cut(self._run_model(wide.source, stream, near, dy, beside, parameters)), truth)

        def judge_in_fp32(ours: list[Tensor], own: list[Tensor]) -> list[Measured]:
            found = list(self.judge.compare(number, names, ours, own, truth, torch.float32))
            if all(one.ok for one in found) or self.device.type not in ("cpu", "cuda"):
                return found
            spread = stream.spread(dy / factor)

            def fit(results: list[Tensor]) -> list[Tensor]:
                y, *gradients = cut(results)
                return [y, *(gradient * factor for gradient in gradients)]

            finer = fit(run_finer(wide.source, self.dtype, x, spread, exact.given, heard))
            for nudged in nudge(x.float()):
                with without_tf32():
                    own = further(own, fit(wide.run(nudged, spread, exact.given, heard)), finer)
            judge = Judge(torch.float32, exact=True)
            return list(judge.compare(number, names, ours, own, finer, torch.float32, TIMES_FINER))

        plainly = self.dtype == torch.float32 and self.exact
        if not plainly:
            wider = self.widen(layer)
            ours = self._run(wider, rows_of_x, dy, rows, "all", parameters, shown, exact, fp32=True)
            yield from judge_in_fp32(ours, truth)
            del ours
        for keep in ("all", "input"):
            ours = self._run(layer, rows_of_x, dy, rows, keep, parameters, shown, beside)
            if plainly:
                yield from judge_in_fp32(ours, own)
            else:
                yield from self.judge.compare(number, names, ours, own, truth, self.dtype)

    def _run(
        self, layer: Layer, x: Tensor, dy: Tensor, rows: BatchLayout, keep: str, parameters: list[nn.Parameter],
        shown: Tensor | float, beside: BesideRows, *, fp32: bool = False,
    ) -> list[Tensor]:  # fmt: skip
        """Return y, dx and the gradients by our code; of y what `shown`, 1 or 0, leaves of its rows."""
        store, kernels = self.decoder.store, self.wide_kernels if fp32 else self.decoder.kernels
        rows = replace(rows, shared=beside.share())
        for parameter in parameters:
            store.gradient(parameter).zero_()
        with torch.no_grad(), without_tf32() if fp32 else nullcontext():
            y, kept = layer.forward(x.float() if fp32 else x, rows, kernels, keep)
            upstream = layer.outer.widen_gradient(x.shape[0])
            upstream[:, : x.shape[1]] = dy
            dx = layer.backward(kept, [upstream], rows, kernels)[:, : x.shape[1]]
        gradients = [store.gradient(p).clone() for p in parameters]
        return [y * shown, dx, *gradients, *beside.collect(rows.shared)]

    def _run_model(
        self, module: nn.Module, stream: Stream, x: Tensor, dy: Tensor, beside: BesideRows,
        parameters: list[nn.Parameter],
    ) -> list[Tensor]:  # fmt: skip
        """Return the same by the model's own code, in its form, as a step without our decoder runs it."""
        heard = [*parameters, *beside.leaves.values()]
        with self.autocasting():
            return run_module(module, x, stream.spread(dy), beside.given, heard)

    # -- head and whole ------------------------------------------------------------------------------------------

    def _compare_head(self) -> Iterator[Measured]:
        """The last norm, the head, the loss and the embedding, from what the model's last layer gave."""
        number, decoder = len(self.decoder.layers), self.decoder
        x, picks, targets = self.picked()
        with without_tf32():
            truth = run_head(decoder.spec, x[picks].float(), targets, HEAD_SCALE, wide=True)
        with self.autocasting():
            own = run_head(decoder.spec, x[picks], targets, HEAD_SCALE, wide=False)
        seen = self.text.cut(self.text.logits)[picks]
        error = errors_of([seen], [truth.logits])[0][0]
        yield Measured(number, "head", error, TRUSTED, error <= TRUSTED)
        decoder.store.clear_gradients()
        with torch.no_grad():
            logits = decoder.logits(x[picks])
            losses, dx = decoder.apply_head(
                x.clone(), picks, targets, torch.tensor(HEAD_SCALE, device=self.device)
            )
        dx = dx[:, : x.shape[1]]
        yield from self.judge.compare(
            number, ["logits", "dx"], [logits, dx[picks]], [own.logits, own.dx], [truth.logits, truth.dx],
            self.dtype,
        )  # fmt: skip
        yield self.judge.loss(number, losses.sum() / HEAD_SCALE, own.loss, truth.loss)
        norm = decoder.spec.norm
        wide = widen(norm.module, self.dtype, {})
        with torch.no_grad():
            exact = wide(x.float())
            mine = self.wide_kernels.rms_norm.forward(x.float(), wide.weight, *norm.options)[0]
        yield from self.judge.compare(number, ["norm"], [mine], [exact], [exact], torch.float32)
        yield from compare_ends(self, own, truth)
        if decoder.spec.token_rows:
            yield from compare_rows(self, HEAD_SCALE)

    def _compare_all(self, x: Tensor, like: Tensor | None) -> Iterator[Measured]:
        """Logits and loss of the whole model, from the token ids; `x` and `like`: what all layers give in fp32."""
        number, decoder = len(self.decoder.layers), self.decoder
        _, picks, targets = self.picked()
        ids = self.text.cut(self.text.ids)
        with without_tf32():
            truth = run_head(decoder.spec, x[picks], targets, 1.0, wide=True)
            own = None if like is None else run_head(decoder.spec, like[picks], targets, 1.0, wide=True)
        # The model's own code in the run's dtype says whether it was read rightly; 8 bits are further off by themselves
        # (0.58 after 32 layers of random weights).
        own_logits = self.text.cut(self.text.logits)[picks].float()
        trust = errors_of([own_logits], [truth.logits])[0][0]
        if own is None:
            own_loss = functional.cross_entropy(own_logits, targets, reduction="sum")
        else:
            own_logits, own_loss = own.logits, own.loss
        yield Measured(number, "model", trust, TRUSTED_DEPTH, trust <= TRUSTED_DEPTH)
        with torch.no_grad():
            logits = decoder.logits(decoder.hidden(ids, self.rows)[picks])
        yield from self.judge.deep(number, "all logits", logits, own_logits, truth.logits)
        decoder.store.clear_gradients()
        loss = decoder.add_gradients(ids, self.rows, picks, targets, 1.0).sum()
        yield self.judge.loss(number, loss, own_loss, truth.loss)
        if isinstance(decoder.store, WholeStore):
            yield from self._compare_whole(decoder.store)

    def _compare_whole(self, store: WholeStore) -> Iterator[Measured]:
        """Gradients that came down through the whole model, as _compare_all() left them: of table and first norm."""
        spec = self.decoder.spec
        norm, first = next(iter(norms_of(spec.layers[0]).items()))
        weights = [spec.embedding.weight, first.module.weight]
        with store.holding(store.weights), without_tf32():
            truth = self._run_whole(weights)
        with self.autocasting():
            own = self._run_whole(weights)
        yield from self.judge.compare(
            0, ["all embed_tokens.weight", f"all {norm}.weight"], [store.gradient(p) for p in weights], own,
            truth, self.dtype, TIMES_LOOSE,
        )  # fmt: skip

    def _run_whole(self, weights: list[nn.Parameter]) -> list[Tensor]:
        """Return the gradients of `weights` by the model's own code, from the token ids to the loss."""
        _, picks, targets = self.picked()
        with torch.enable_grad():
            logits = self.text.cut(self.model(input_ids=self.text.ids, use_cache=False).logits)[picks]
            loss = functional.cross_entropy(logits.float(), targets, reduction="sum")
            return list(torch.autograd.grad(loss, weights))

    def autocasting(self) -> torch.autocast:
        """Lower inside what the run's autocast lowers."""
        return torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None)

    def picked(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the last layer's result as the model has it, some of its rows, and the tokens that follow them."""
        picks = torch.arange(1, sum(LENGTHS), HEAD_STEP, device=self.device)
        following = self.text.cut(self.text.ids.roll(-1, 1))[picks]
        return self.text.cut(self.text.inputs[-1]).to(self.dtype), picks, following

"""A base in 4 bits that is closer to its 16-bit model: fitted to the run's own rows, what is felt most left in 16 bits.

    layer by layer, over the layers before it as they are now: what its matrices meet, then each rounded anew
    each matrix alone in 16 bits again: how much nearer the next tokens come; the most for each byte stays so

Only as many matrices stay in 16 bits as the recipe gives room for beside the 4-bit ones (`model.more_bits`). What was
chosen is a file of the run: a resume, a chat and an export have the very same base. Read it as
`{module}.packed` (n / 2,) uint8, the nibbles of NF4 over the scales that loading makes, or `{module}.weight` (out, in).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from bitsandbytes.nn import Linear4bit
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from studio_kernels.nf4 import Nf4
from torch import Tensor, nn

from studio.core.atomic_files import write_file
from studio.core.errors import StudioError
from studio.core.i18n import Text, text
from studio.core.json_file import parse_json
from studio.models.fitted_rounding import Moments, pack, round_fitted, spread_scales
from studio.models.gguf.importance import WEIGHT
from studio.models.language_model import find_language_model, text_inputs
from studio.models.next_tokens import NextTokens
from studio.models.weights import Copier, Entry, list_entries

PACKED, ABOUT = ".packed", "about"
ROW_TOKENS = 512
FIT_TOKENS = {"cuda": 8192, "cpu": 4096}
"""Read at once for what the matrices meet: activations of an 8B model's widest part take 0.25 GB."""
ROWS = 48
"""Of the run's own, from all over its data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseWish:
    """What a mixed base is to be made of."""

    path: Path
    """Its file: read where it is there, else written."""
    rows: Sequence[Sequence[int]]
    """Token ids of the run's own rows: every third is kept apart to see what was gained."""
    more_bits: float
    """Room for matrices in 16 bits, as a share of what all take in 4."""
    may_make: bool
    """Whether it may be made: not for a run that has learned on one."""
    go_on: Callable[[], None] = lambda: None
    """Called now and then; may raise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedBase:
    """What was chosen."""

    matrices: int
    """In 4 bits or 16, of all layers."""
    fitted: int
    """Of these: in 4 bits, rounded for the run's rows."""
    kept: tuple[str, ...]
    """In 16 bits, those that are felt most first."""
    kept_share: float
    """Of the matrices' weights."""
    size_bytes: int
    """What the matrices take."""
    uniform_bytes: int
    """What they would in 4 bits everywhere."""
    kl: float
    """Nats a token from the 16-bit model's next tokens, on rows that nothing was fitted to."""
    uniform_kl: float
    """The same of 4 bits everywhere, each weight rounded to the nearest."""


@dataclass(slots=True)
class _Originals:
    """The weights of the 4-bit linears in the model's files."""

    linears: Mapping[str, Linear4bit]
    entries: Mapping[str, Entry]
    copier: Copier

    @classmethod
    def of(cls, model: nn.Module, folder: str) -> _Originals:
        """Raises StudioError where the files name or shape them otherwise than the loaded model."""
        linears = {name: one for name, one in model.named_modules() if isinstance(one, Linear4bit)}
        entries = {entry.name: entry for entry in list_entries(Path(folder))}
        strange = [
            name
            for name, linear in linears.items()
            if (entry := entries.get(name + WEIGHT)) is None
            or tuple(entry.stored.shape) != tuple(linear.weight.quant_state.shape)
        ]
        if strange or not linears:
            raise _refuse(text("mixed.names", name=strange[0] if strange else "-"))
        return cls(linears, entries, Copier(next(model.parameters()).device))

    def read(self, name: str) -> Tensor:
        """Return a weight (out, in) as it is stored."""
        entry = self.entries[name + WEIGHT]
        return self.copier.copy(entry.path, entry.stored)


def settle_base(model: nn.Module, folder: str, dtype: torch.dtype, wish: BaseWish) -> MixedBase:
    """Give `model`, loaded in NF4 from `folder`, the base that its run has, or make one. Returns what it is.

    Raises StudioError where that cannot be, OSError.
    """
    if not wish.path.is_file() and wish.may_make:
        _make(model, folder, dtype, wish)  # in the model meanwhile, too
    return put_base(model, wish.path, dtype)


def put_base(model: nn.Module, path: Path, dtype: torch.dtype) -> MixedBase:
    """Give `model`, loaded in NF4, the base in the file `path`; matrices in 16 bits come in `dtype`.

    Raises StudioError where the file is gone, damaged or of another model.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = parse_json((file.metadata() or {})[ABOUT])
            for name in file.keys():  # noqa: SIM118 - it is no dict
                module, tensor = model.get_submodule(name.rpartition(".")[0]), file.get_tensor(name)
                if not isinstance(module, Linear4bit):
                    raise ValueError(name)
                if name.endswith(PACKED):
                    module.weight.data.view(torch.uint8).view(-1).copy_(tensor)
                else:
                    _replace(model, name.removesuffix(WEIGHT), tensor, dtype)
            return MixedBase(**about | {"kept": tuple(about["kept"])})
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        why = text("mixed.file.why", file=path.name)
        raise StudioError(text("mixed.file"), why, text("mixed.file.fix")) from error


def describe_base(base: MixedBase) -> Text:
    """Return in words what is held in how many bits, and what that gains."""
    values = {
        "fitted": base.fitted,
        "matrices": base.matrices,
        "kept": len(base.kept),
        "share": f"{100 * base.kept_share:.1f}",
        "mb": f"{base.size_bytes / 1e6:,.1f}",
        "uniform_mb": f"{base.uniform_bytes / 1e6:,.1f}",
        "kl": f"{base.kl:.4f}",
        "uniform_kl": f"{base.uniform_kl:.4f}",
    }
    return text("mixed.held" if base.fitted else "mixed.plain", **values)


def _make(model: nn.Module, folder: str, dtype: torch.dtype, wish: BaseWish) -> None:
    originals = _Originals.of(model, folder)
    checked = [row[:ROW_TOKENS] for row in wish.rows[2::3]] or [row[:ROW_TOKENS] for row in wish.rows]
    fitting = [row[:ROW_TOKENS] for i, row in enumerate(wish.rows) if i % 3 < 2]
    if not fitting or not any(map(len, fitting)):
        raise _refuse(text("mixed.rows"))
    with _as_stored(originals, frozenset(originals.linears)):
        exact = NextTokens(model, checked)
    uniform_kl = exact.measure()
    plain = {name: one.weight.data.clone() for name, one in originals.linears.items()}
    fitted = _fit(model, originals, fitting, wish.go_on)
    kl = exact.measure()
    if not kl < uniform_kl:  # the rows tell too little: the nearest is kept
        for name in fitted:
            originals.linears[name].weight.data.copy_(plain[name])
        fitted, kl = (), uniform_kl
    del plain
    uniform_bytes = sum(_count_packed(one) for one in originals.linears.values())
    kept = _choose_kept(originals, exact, kl, round(wish.more_bits * uniform_bytes), dtype, wish.go_on)
    if kept:
        with _as_stored(originals, frozenset(kept)):
            kl = exact.measure()
    sizes = {name: one.weight.quant_state.shape.numel() for name, one in originals.linears.items()}
    size_bytes = sum(
        dtype.itemsize * sizes[name] if name in kept else _count_packed(one)
        for name, one in originals.linears.items()
    )
    about = MixedBase(
        matrices=len(sizes),
        fitted=len([name for name in fitted if name not in kept]),
        kept=kept,
        kept_share=sum(sizes[name] for name in kept) / sum(sizes.values()),
        size_bytes=size_bytes,
        uniform_bytes=uniform_bytes,
        kl=kl,
        uniform_kl=uniform_kl,
    )
    tensors = {name + WEIGHT: originals.read(name).cpu() for name in kept}
    tensors |= {
        name + PACKED: originals.linears[name].weight.data.view(torch.uint8).view(-1).cpu()
        for name in fitted
        if name not in kept
    }
    write_file(wish.path, save(tensors, {ABOUT: json.dumps(asdict(about))}), lasting=True)


@torch.no_grad()
def _fit(
    model: nn.Module, originals: _Originals, rows: Sequence[Sequence[int]], go_on: Callable[[], None]
) -> tuple[str, ...]:
    """Round the matrices anew in place, each layer over those before it as they have become. Returns their names."""
    names = {id(module): name for name, module in originals.linears.items()}
    fitted: list[str] = []
    ids, mask = _lay_out(rows, next(model.parameters()).device)
    inside = False

    def enter(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal inside
        if inside:
            return
        inside = True
        try:
            mine = [module for module in layer.modules() if id(module) in names]
            for moments, modules in _watch(layer, args, kwargs, mine, mask):
                go_on()
                _round_together(modules, [originals.read(names[id(one)]) for one in modules], moments)
                fitted.extend(names[id(one)] for one in modules)
        finally:
            inside = False

    language = find_language_model(model)
    hooks = [
        layer.register_forward_pre_hook(enter, with_kwargs=True) for layer in _list_layers(language, names)
    ]
    try:
        language(input_ids=ids, attention_mask=mask.long(), use_cache=False, **_hear(language, model, ids))
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(fitted)


def _hear(language: nn.Module, model: nn.Module, ids: Tensor) -> dict[str, Tensor]:
    return text_inputs(model, ids.shape, ids.device) if language is model else {}


def _list_layers(language: nn.Module, names: Mapping[int, str]) -> list[nn.Module]:
    """Return the children of the outermost lists of modules that hold any of the linears `names`, by id."""
    found: list[nn.Module] = []
    inside: set[int] = set()
    for module in language.modules():
        if isinstance(module, nn.ModuleList) and id(module) not in inside:
            layers = [one for one in module if any(id(part) in names for part in one.modules())]
            found += layers
            inside |= {id(part) for part in module.modules()}
    return found


@dataclass(slots=True)
class _Meeting:
    """Linears that were given the same rows, and what these are."""

    rows: Tensor
    moments: Moments
    modules: list[nn.Module] = field(default_factory=list)


def _watch(
    layer: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    linears: Sequence[nn.Module],
    mask: Tensor,
) -> list[tuple[Moments, list[nn.Module]]]:
    """Return what the `linears` of `layer` meet when it is called so; those that read the same rows together."""
    met: list[_Meeting] = []

    def hear(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        rows = given[0]
        if not met or met[-1].rows is not rows:
            moments = Moments(rows.shape[-1], rows.device)
            flat = rows.reshape(-1, rows.shape[-1])
            moments.add(flat[mask.reshape(-1)] if len(flat) == mask.numel() else flat)
            met.append(_Meeting(rows, moments))
        met[-1].modules.append(module)

    hooks = [linear.register_forward_pre_hook(hear) for linear in linears]
    try:
        layer(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    seen: set[int] = set()
    found = []
    for one in met:
        fresh = [
            module for module in one.modules if id(module) not in seen
        ]  # one called twice is fitted once
        seen |= {id(module) for module in fresh}
        if fresh:
            found.append((one.moments, fresh))
    return found


def _round_together(modules: Sequence[nn.Module], weights: Sequence[Tensor], moments: Moments) -> None:
    held = [Nf4.of(module.weight.quant_state, module.weight.data) for module in modules]
    scales = torch.cat([spread_scales(one) for one in held])
    places = round_fitted(torch.cat([one.float() for one in weights]), scales, held[0].code, moments)
    for module, part in zip(modules, places.split([one.shape[0] for one in held]), strict=True):
        module.weight.data.view(torch.uint8).view(-1).copy_(pack(part))


def _lay_out(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ids (B, S) of the first rows, filled up at the right with 0, and where they are real (bool)."""
    chosen, count = [], 0
    for row in rows:
        if len(row) and (not chosen or count + len(row) <= FIT_TOKENS.get(device.type, 4096)):
            chosen.append(torch.as_tensor(list(row)))
            count += len(row)
    ids = nn.utils.rnn.pad_sequence(chosen, batch_first=True).to(device)
    lengths = torch.tensor([len(one) for one in chosen], device=device)
    return ids, torch.arange(ids.shape[1], device=device) < lengths[:, None]


@contextmanager
def _as_stored(originals: _Originals, names: frozenset[str]) -> Iterator[None]:
    """Let the linears `names` multiply by their weights in the files, read each time: no room for all is needed."""
    hooks = []

    def answer(name: str) -> Callable[..., Tensor]:
        def multiply(module: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> Tensor:
            return nn.functional.linear(given[0], originals.read(name).to(given[0].dtype), module.bias)

        return multiply

    for name in names:
        hooks.append(originals.linears[name].register_forward_hook(answer(name)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _choose_kept(
    originals: _Originals,
    exact: NextTokens,
    kl: float,
    room_bytes: int,
    dtype: torch.dtype,
    go_on: Callable[[], None],
) -> tuple[str, ...]:
    """Return the matrices that bring the next tokens nearest for each byte, until `room_bytes` more are taken."""
    added = {
        name: dtype.itemsize * one.weight.quant_state.shape.numel() - _count_packed(one)
        for name, one in originals.linears.items()
    }
    gains = {}
    for name, size_bytes in added.items():
        if size_bytes <= room_bytes:
            go_on()
            with _as_stored(originals, frozenset((name,))):
                gains[name] = (kl - exact.measure()) / size_bytes
    kept = []
    for name in sorted(gains, key=lambda name: -gains[name]):
        if gains[name] > 0 and added[name] <= room_bytes:
            room_bytes -= added[name]
            kept.append(name)
    return tuple(kept)


def _count_packed(linear: nn.Module) -> int:
    """Return the bytes of a linear's weight in 4 bits, with its scales."""
    state = linear.weight.quant_state
    scales = state.absmax.nbytes + (state.state2.absmax.nbytes if state.nested else 0)
    return linear.weight.data.nbytes + scales


def _replace(model: nn.Module, name: str, weight: Tensor, dtype: torch.dtype) -> None:
    old = model.get_submodule(name)
    if tuple(weight.shape) != tuple(old.weight.quant_state.shape):
        raise ValueError(name)
    with torch.device("meta"):
        new = nn.Linear(old.in_features, old.out_features, bias=False)
    new.weight = nn.Parameter(weight.to(old.weight.device, dtype), requires_grad=False)
    new.bias = old.bias
    model.set_submodule(name, new.eval())


def _refuse(why: Text) -> StudioError:
    return StudioError(text("mixed.refused"), why, text("mixed.refused.fix"))

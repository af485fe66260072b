"""Whether the probe accepts the decoder of real models, and refuses it with a fault planted.

    python benchmarks/probe.py MODEL [MODEL ...] [--dtypes fp32,bf16,fp16,nf4] [--ways lora,full] [--faults]

Takes each model as a run would (loader, adapter, every kernel that the device has), holds its decoder against the model
on real text, and prints how many comparisons there were, how many were refused, the seconds, and those nearest to it.
`fp8` among --dtypes: bf16 with frozen weights multiplied in 8 bits (needs a card). --faults plants every fault of
tests/models/decoder/planted.py into layer --layer, one after another. Exit code 1 when what is right is refused or a
fault accepted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

from benchmarks.table import append_row  # noqa: E402 (the folder above must be on the path first)

COLUMNS = "model way dtype seconds comparisons refused worst_ratio worst faults found gpu torch date command".split()
NAMES = {"nf4": "bf16", "fp8": "bf16"}
"""In which dtype what is quantised is computed."""
SHOWN = 3


def main() -> int:
    options = parse()
    from benchmarks.real import describe_machine

    words = [Path(word).name if word in options.models else word for word in sys.argv[1:]]
    shared = describe_machine() | {"command": " ".join(["probe.py", *words])}
    bad = 0
    for model in options.models:
        for way in options.ways:
            for dtype in options.dtypes:
                if way == "full" and dtype in NAMES:
                    continue  # weights in 4 or 8 bits are not trained
                row = look(model, way, dtype, options)
                bad += row["refused"] != 0 or row["faults"] != row["found"]
                if options.out:
                    append_row(
                        options.out, {k: v for k, v in (shared | row).items() if k in COLUMNS}, COLUMNS
                    )
    return 1 if bad else 0


def look(model: str, way: str, dtype: str, options: argparse.Namespace) -> dict[str, Any]:
    """Hold one model's decoder against it, right and with every fault, and return the table's row."""
    from studio.models.decoder.parity_check import find_difference, measure
    from studio.models.decoder.tolerance import ROUNDING
    from studio.models.load import AUTOCAST_DTYPES, DTYPES
    from tests.models.decoder.planted import FAULTS, is_felt

    base, texts, take = load(model, way, dtype, options.device)
    decoder, name = take(), NAMES.get(dtype, dtype)
    autocast, floor = AUTOCAST_DTYPES.get(name), ROUNDING[DTYPES[name]]
    started_s = time.perf_counter()
    found = list(measure(base, decoder, autocast, texts))
    took_s = time.perf_counter() - started_s
    decoder.release()
    refused = [one for one in found if not one.ok]
    single = [one for one in found if one.own > 0 and ", " not in one.part]  # not the mean of a layer's parts
    rounded = sorted(single, key=lambda one: -one.ours / max(one.own, floor))
    print(
        f"{Path(model).name} {way} {dtype}: {len(found)} comparisons, {len(refused)} refused, {took_s:.1f} s"
    )
    for one in (*refused[:SHOWN], *rounded[:SHOWN]):
        verdict = "right" if one.ok else "REFUSED"
        print(f"    layer {one.layer} {one.part}: {one.ours:.3g}, own {one.own:.3g}: {verdict}")
    row = {
        "model": Path(model).name,
        "way": way,
        "dtype": dtype,
        "seconds": round(took_s, 2),
        "comparisons": len(found),
        "refused": len(refused),
        "worst_ratio": round(rounded[0].ours / max(rounded[0].own, floor), 3) if rounded else 0.0,
        "worst": f"{rounded[0].layer} {rounded[0].part}" if rounded else "",
        "faults": 0,
        "found": 0,
    }
    for fault in FAULTS if options.faults else ():
        if way == "full" and "adapter" in fault.__name__:
            continue
        decoder = take()
        layer = decoder.layers[options.layer]
        if is_felt(fault, layer):
            fault(decoder, layer)
            said = find_difference(base, decoder, autocast, texts)
            row["faults"] += 1
            row["found"] += said is not None
            told = f"layer {said.values['layer']} {said.values['part']}" if said else "ACCEPTED"
            print(f"    {fault.__name__}: {told}", flush=True)
        decoder.release()
    sys.stdout.flush()
    return row


def load(
    model: str, way: str, dtype: str, device: str
) -> tuple[Any, Sequence[Sequence[int]], Callable[[], Any]]:
    """Return the loaded model outside its wrapper, token ids of real text, and what makes an unproved decoder of it.

    The last raises RuntimeError where there is none.
    """
    from studio_kernels.dispatch import OPS, importable

    from studio.core.i18n import load_catalogue
    from studio.core.memory_policy import LayerPolicy, MemoryPolicy
    from studio.core.recipe import AdapterSpec
    from studio.models.adapt import adapt, unwrap
    from studio.models.catalog import inspect_model
    from studio.models.decoder.probe_states import sample_ids
    from studio.models.load import AUTOCAST_DTYPES, DTYPES, load_model
    from studio.models.optimize_model import make_fast

    name = NAMES.get(dtype, dtype)
    loaded = load_model(
        inspect_model(model),
        device=device,
        dtype="fp32" if way == "full" else name,
        quantization="nf4" if dtype == "nf4" else "none",
    )
    base = unwrap(adapt(loaded.model, AdapterSpec(method=way)))
    kernels = {op.name: "triton" for op in OPS} if device != "cpu" and importable().ok else {}
    layers = base.config.get_text_config().num_hidden_layers

    def take() -> Any:
        fast = make_fast(
            base,
            kernels,
            MemoryPolicy(layers=(LayerPolicy(),) * layers),
            dtype=DTYPES[name],
            autocast=AUTOCAST_DTYPES.get(name),
            fp8=dtype == "fp8",
            proved=lambda: True,
        )
        why = fast.refused or fast.fp8_refused
        if why is not None:
            raise RuntimeError(load_catalogue("en").say(why))
        return fast.decoder

    return base, sample_ids(loaded.tokenizer), take


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    listed = {"type": lambda words: words.split(",")}
    parser.add_argument("models", nargs="+")
    parser.add_argument("--dtypes", **listed, default=["fp32", "bf16", "fp16", "nf4"])
    parser.add_argument("--ways", **listed, default=["lora"], help="lora,full")
    parser.add_argument("--device", default="cuda:0", help="cuda:0 or cpu")
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--layer", type=int, default=1, help="the layer that a fault is planted in")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

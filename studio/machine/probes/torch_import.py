"""Run in a child process: imports torch, says what it was built for and sees, then tries bitsandbytes with it.

    python -m studio.machine.probes.torch_import [bitsandbytes]

Both in one process, because importing torch costs 2 to 10 s; what was handed over before a crash stays known.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from studio.machine.probes.child import hand_over

WIDTH = 1024
"""Of the matrices that rate the processor: 2 GFLOP, 30 ms on one core; Windows counts in steps of 16 ms."""
RATING_S = 0.25


def main(arguments: list[str]) -> int:
    """Hand over the fields of MachineFacts that torch knows; with an argument also `quantizes`, then the stage."""
    import torch

    hand_over(torch_sees_gpu=torch.cuda.is_available())
    hand_over(
        torch_cuda=torch.version.cuda or "",
        torch_hip=getattr(torch.version, "hip", None) or "",
        torch_xpu=hasattr(torch, "xpu") and torch.xpu.is_available(),
        torch_architectures=torch.cuda.get_arch_list() if torch.cuda.is_available() else [],
        devices=list_devices(torch),
    )
    hand_over(processor_rate=rate_processor(torch))
    if arguments:
        hand_over(stage="bitsandbytes")
        quantize(torch)
        hand_over(stage="")
    return 0


def list_devices(torch: Any) -> list[dict[str, Any]]:
    """Return name, memory in bytes and chip of AMD's and Intel's GPUs, which no driver of theirs tells everywhere."""
    found = []
    if getattr(torch.version, "hip", None) and torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            device = torch.cuda.get_device_properties(index)
            chip = getattr(device, "gcnArchName", "").partition(":")[0]
            found.append(
                {
                    "vendor": "amd",
                    "name": device.name,
                    "vram_bytes": device.total_memory,
                    "architecture": chip,
                }
            )
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        for index in range(torch.xpu.device_count()):
            device = torch.xpu.get_device_properties(index)
            found.append({"vendor": "intel", "name": device.name, "vram_bytes": device.total_memory})
    return found


def rate_processor(torch: Any) -> float:
    """Return the operations a second of a product of fp32 matrices on all cores, the best within RATING_S.

    One core works, and its own time counts, times the cores: other probes and programs work beside this one, and a
    product on all cores was found 3 to 6 times too slow there.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    a = torch.ones(WIDTH, WIDTH)
    best_s, began_s = math.inf, time.perf_counter()
    while time.perf_counter() - began_s < RATING_S or best_s == math.inf:
        started_s = time.process_time()
        torch.mm(a, a)
        took_s = time.process_time() - started_s
        best_s = min(best_s, took_s or math.inf)
    torch.set_num_threads(threads)
    return threads * 2 * WIDTH**3 / best_s


def quantize(torch: Any) -> None:
    """Pack 64 x 64 numbers into 4 bits on the GPU and back, and take one step of the 8-bit optimizer.

    An import proves nothing: bitsandbytes defers a failed load of its native library until its first use. Raises
    whatever it raises, SystemExit where wrong numbers come back.
    """
    import bitsandbytes

    device = "cuda" if torch.cuda.is_available() else "xpu"
    weights = torch.randn(64, 64, device=device, dtype=torch.float16)
    packed, state = bitsandbytes.functional.quantize_4bit(weights, quant_type="nf4")
    error = (bitsandbytes.functional.dequantize_4bit(packed, state) - weights).abs().mean().item()
    if not error < 0.2:
        raise SystemExit(f"The 4-bit round trip is wrong by {error:.3f} on average.")
    # Fewer than 4,096 values are kept in 32 bits.
    parameter = torch.nn.Parameter(torch.ones(8192, device=device))
    parameter.grad = torch.ones_like(parameter)
    bitsandbytes.optim.AdamW8bit([parameter], lr=0.1, weight_decay=0.0).step()
    moved = (1 - parameter).mean().item()
    if not 0.05 < moved < 0.2:
        raise SystemExit(f"The 8-bit optimizer's first step is {moved:.3f} instead of 0.1.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Failures of what was trained with the programs that run it: adapters for llama.cpp and vLLM, models for Ollama."""

from __future__ import annotations

import re
from collections.abc import Mapping

from studio.machine.failures.error_text import Reading
from studio.machine.failures.failure import Doubt, Failure, Remedy, said

VLLM_LORA = re.compile(r"[\\/]vllm[\\/]lora[\\/]")


def _read_served_adapter(reading: Reading) -> Mapping[str, str] | None:
    """What vLLM's own code for adapters raised."""
    raised = reading.last
    frames = raised.frames[-2:] if raised is not None and not raised.wraps else ()
    return {} if any(VLLM_LORA.search(frame.path) for frame in frames) else None


FAILURES = (
    Failure(
        "server_awaited",
        said(r"[Ss]erver (?:is )?not (?:up|ready|running|reachable|available)(?: yet)?\b[^\n]{0,200}"),
        (Remedy("start_server"), Remedy("server_address")),
        code="N62",
        strength=0.9,
    ),
    Failure(
        # Another process, whose own words stand in its own log.
        "server_failed",
        said(
            r"\b500:?,? (?:\w+ )?(?:Internal )?Server Error",
            r"Error code: 500\b",
            r"(?:llama|model) runner (?:process )?(?:has )?(?:unexpectedly stopped|"
            r"terminated)(?:: exit status (?!2\b)\d+)?\s*$",
        ),
        (Remedy("server_log"), Remedy("newer_server")),
        code="K69",
        strength=0.5,
    ),
    Failure(
        # The process that computes crashed below its own messages, for which its log alone has words.
        "ollama_old",
        said(
            r"(?:llama|model) runner (?:process )?(?:has terminated|no longer running)[: \\\"]+"
            r"(?:exit status )?(?:0xc0000(?:005|139|409|01d)|2|322122\d{4})\b(?![^\n]*(?:error:|GGML_ASSERT|memory))",
        ),
        (Remedy("newer_ollama"), Remedy("server_log")),
        code="K89",
        strength=0.9,
        doubt=Doubt("driver_old", "ollama_version"),
    ),
    Failure(
        "adapter_parts",
        said(
            r"Not a lora_A or lora_B tensor",
            r"unrecognized tensor base_model\.[\w.]+",
            r"LoRA tensor '[^'\n]+' has unexpected suffix",
            r"(?P<doubtful>failed to apply lora adapter)",
            r"Embeddings is present in the adapter",
        ),
        (Remedy("merge_in_16_bits"), Remedy("newer_llama_cpp")),
        code="K60",
        doubt=Doubt("gguf_damaged", "first_line", asked=True),
    ),
    Failure(
        "server_prompt",
        said(
            r"[Ii]nput prompt \(\d+ tokens\) is too long and exceeds",
            r"prompt \(length \d+\) is longer than the maximum model length",
            r"(?:request|prompt|input)[^\n]{0,40} exceeds the available context size",
        ),
        (Remedy("longer_server"), Remedy("shorter_prompts")),
        code="K66",
    ),
    Failure(
        "mlx_model",
        said(
            r"[\\/]mlx[\w-]*[\\/][\s\S]{0,3000}?(?:rope_scaling must contain|ValueError: Missing (?:\d+ )?parameters|"
            r"ValueError: Received (?:\d+ )?parameters not in model|ValueError: Model type \S+ not supported)",
            r"Missing parameters: \S+\.(?:biases|scales)\b",
        ),
        (Remedy("newer_mlx"), Remedy("convert_mlx")),
        code="K62",
    ),
    Failure(
        "server_architecture",
        said(
            r"Model architectures? \[(?P<name>[^\]\n]{1,200})\] (?:are not supported|failed to be inspected)",
            r"(?P<name>\w+) has no vLLM implementation",
        ),
        (Remedy("newer_vllm"), Remedy("causal_architecture")),
        code="K68",
    ),
    Failure(
        # Exporters and quantisers have a list of the kinds of model that they can take apart.
        "export_architecture",
        said(
            r"Trying to export an? (?P<name>[\w.-]+) model,? that is a custom or unsupported architecture",
            r"(?P<name>[\w.-]+) is not supported yet (?:with|for) (?:the )?(?:backend |task )?[^\n]{0,40}"
            r"\b(?:onnx|openvino|export)",
            r"TypeError: (?P<name>[\w.-]+) isn't supported yet",
            r"[Uu]nsupported model(?:_| )type:? [`'\"]?(?P<name>[\w.-]+)[^\n]{0,80}(?:quanti|export|convert)",
            r"(?:optimum|onnx|openvino|awq|gptq)\w*[\\/][^\n]*\n(?:[^\n]*\n){0,4}?"
            r"(?:KeyError|ValueError|TypeError|NotImplementedError): [^\n]{0,60}"
            r"(?:model type|architecture) [`'\"]?(?P<name>[\w.-]+)[^\n]{0,60}(?:not|n't|un)[^\n]{0,20}support",
        ),
        (Remedy("newer_exporter"), Remedy("other_format")),
        code="K105",
    ),
    Failure(
        # The names of tensors begin with the parts of the class that saved them.
        "weights_named",
        said(r"There is no module or parameter named '(?P<name>[\w.]+)' in (?P<kind>\w+)"),
        (Remedy("same_class_config"), Remedy("newer_vllm")),
        code="K94",
    ),
    Failure(
        "served_adapter",
        said(r"is unsupported LoRA weight", r"^\s*assert token_lora_mapping\.size"),
        (Remedy("merge_to_serve"), Remedy("newer_vllm")),
        code="R58",
        reader=_read_served_adapter,
        unless=said(r"max_lora_rank|No adapter found for"),
    ),
)

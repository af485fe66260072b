"""Failures of tensors that do not go together, told apart by the line of code that joined them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from studio.machine.failures.error_text import Frame, Reading
from studio.machine.failures.failure import Doubt, Failure, Remedy, said

Values = Mapping[str, str] | None
MISFIT = re.compile(
    r"size of tensor a|cannot be multiplied|broadcast shape|is invalid for input of size|expanded size of the tensor|"
    r"[Ss]izes of tensors must match|shape mismatch|should be of size|must match the (?:existing )?size|"
    r"batch_size \(\d+\) to match target"
)
MASK = re.compile(r"attention_mask|attn_mask|causal_mask|attn_bias|attn_weights\s*\+|scores\s*\+")
LABELS = re.compile(r"cross_entropy|loss_fct|criterion|nll_loss|\blabels?\b")
ADAPTER = re.compile(r"\blora_[AB]\b|lora_(?:embedding|dropout)|base_layer|delta_weight")
POSITIONS = re.compile(r"rotate_half|apply_rotary|\bcos\b|\bsin\b|position_embeddings|inv_freq")
PICTURES = re.compile(r"image_(?:features|embeds)|vision|pixel_values|masked_scatter|video_embeds|image_mask")
RESHAPED = re.compile(r"\.(?:view|reshape|unflatten)\(|\brearrange\(")
JOINED = re.compile(r"pad_and_concatenate|nested_concat|nested_truncate|evaluation_loop|prediction_loop")
"""Functions of transformers that put the predictions of all batches together."""
LONGEST_READ = frozenset((77, 448, 512, 514, 1024, 1026, 2048, 4096, 8192))
"""How many tokens models read at most, by the size of their table of positions."""
LOADED = re.compile(r"\.copy_\(|load_state_dict|weight_loader|\bparam\.data\b")
LORA = re.compile(r"[\\/]lora[\\/]")
LONGEST_ROW = 2_000_000
"""No row has more tokens: a larger size is that of a packed weight."""


def _by_source(pattern: re.Pattern[str]) -> Callable[[Reading], Values]:
    def read(reading: Reading) -> Values:
        raised = reading.last
        if raised is None or not MISFIT.search(raised.message) or not raised.source:
            return None
        return {"says": raised.source} if pattern.search(raised.source) else None

    return read


def _of_adapter(frame: Frame) -> bool:
    return LORA.search(frame.path) is not None


def _read_too_long(reading: Reading) -> Values:
    """More tokens than there are positions: one of the sizes is a model's usual limit, the other one is larger."""
    raised = reading.last
    sizes = (
        re.search(r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)", raised.message)
        if raised
        else None
    )
    # What is copied into its place was read from a file, and has no positions.
    if raised is not None and (LOADED.search(raised.source) or any(map(_of_adapter, raised.frames[-2:]))):
        return None
    small, large = sorted((int(sizes[1]), int(sizes[2]))) if sizes else (0, 0)
    # One more than a power of two is often a token that a cache or a shift adds.
    fits = small in LONGEST_READ and small + (small not in (77, 448)) < large < LONGEST_ROW
    return {"has": str(large), "wants": str(small)} if fits else None


def _joined_predictions(reading: Reading) -> Values:
    """Predictions of several batches that evaluation puts together."""
    raised = reading.last
    if raised is None or not re.search(r"[Ss]izes of tensors must match|must match exactly", raised.message):
        return None
    joins = any(JOINED.search(frame.function) for frame in raised.frames[-4:])
    return {"says": raised.source} if joins else None


FAILURES = (
    Failure(
        "top_k",
        said(r"selected index k out of range|k (?:\(\d+\) )?(?:is )?(?:too big|not in range) for dimension"),
        (Remedy("smaller_top_k"),),
        code="S8",
    ),
    Failure(
        "eval_lengths",
        None,
        (Remedy("pad_predictions"), Remedy("smaller_predictions")),
        code="R62",
        reader=_joined_predictions,
    ),
    Failure(
        "positions_over",
        None,
        (Remedy("truncate_rows", needs=("wants",)),),
        code="D171",
        reader=_read_too_long,
        doubt=Doubt("tensor_shapes", "print_lengths"),
    ),
    Failure(
        "mask_shape",
        said(
            r"Attention mask should be of size",
            r"output with shape \[\d+, 1, \d+, \d+\] doesn't match the broadcast shape",
        ),
        (Remedy("no_cache_training"), Remedy("plain_masks"), Remedy("matching_versions")),
        code="D166",
        reader=_by_source(MASK),
    ),
    Failure(
        "label_shape",
        said(r"Expected input batch_size \(\d+\) to match target batch_size"),
        (Remedy("same_label_length"),),
        code="D167",
        reader=_by_source(LABELS),
    ),
    Failure(
        "adapter_shape",
        None,
        (Remedy("adapter_base"), Remedy("keep_packed")),
        code="D168",
        reader=_by_source(ADAPTER),
    ),
    Failure(
        "position_shape",
        None,
        (Remedy("matching_versions"), Remedy("without_remote_code")),
        code="D169",
        reader=_by_source(POSITIONS),
    ),
    Failure(
        # What a convolution is given: pictures have 3 channels, Whisper's sounds 80 or 128.
        "input_channels",
        said(r"expected input\[[^\]\n]*\] to have (?P<wants>\d+) channels, but got (?P<has>\d+) channels"),
        (Remedy("processor_of_model"), Remedy("channels_first")),
        code="D190",
    ),
    Failure(
        "reshape_size",
        None,
        (Remedy("sizes_in_code"), Remedy("matching_versions")),
        code="D191",
        reader=_by_source(RESHAPED),
        strength=0.95,
        doubt=Doubt("tensor_shapes", "print_before"),
    ),
    Failure(
        "picture_shape",
        # Values are put where a mask is true: in these models the pictures' features among the tokens.
        said(
            r"(?P<says>value tensor of shape \[\d+, \d+\] cannot be broadcast to indexing result of shape \[\d+, \d+\])"
        ),
        (Remedy("whole_images"),),
        code="D170",
        reader=_by_source(PICTURES),
    ),
)

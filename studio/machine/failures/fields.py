"""What kind of thing has an attribute of a name: of a value that is None, it tells what was never made."""

from __future__ import annotations

THINGS = {
    "tokenizer": "pad_token pad_token_id eos_token eos_token_id bos_token bos_token_id chat_template "
    "apply_chat_template batch_decode convert_tokens_to_ids convert_ids_to_tokens add_special_tokens padding_side "
    "save_vocabulary image_processor feature_extractor",
    "model": "generate named_parameters named_modules state_dict load_state_dict parameters get_input_embeddings "
    "get_output_embeddings resize_token_embeddings save_pretrained push_to_hub gradient_checkpointing_enable",
    "tensor": "shape dtype device cuda backward requires_grad detach unsqueeze squeeze permute transpose ndim numel "
    "contiguous masked_fill grad_fn",
    "dataset": "column_names train_test_split remove_columns num_rows rename_column select_columns",
    "quantised": "absmax blocksize quant_type quant_state quant_map",
    "optimizer": "param_groups zero_grad",
    "text": "split strip lower upper replace startswith endswith splitlines",
    "match": "group groups span",
    "table": "get items keys",
    "process": "poll communicate returncode terminate",
}
"""Names that few other things have, with whom they belong to."""


def thing_of(name: str) -> str:
    """Return what has an attribute `name` (failure.thing.THING); "" for a name that many things have."""
    return next((thing for thing, names in THINGS.items() if name in names.split()), "")

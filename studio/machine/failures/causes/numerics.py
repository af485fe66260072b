"""Failures of the arithmetic: values that are not finite, indices out of range, formats that do not match."""

from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.remedies import CHECK_DATA, LEAVE_FP16, LOWER_RATE, RESUME

FAILURES = (
    Failure(
        "scaler_bf16",
        said(r"_amp_\w*unscale\w*\" not implemented for '(?P<name>\w+)'"),
        (Remedy("bf16_without_scaler"),),
        code="R68",
    ),
    Failure(
        "non_finite",
        said(
            r"\bnon-?finite\b",
            r"loss is nan",
            r"\bloss['\"]?\s*[:=]?\s*['\"]?nan\b",
            r"\bNonFinite\b",
            r"\b(?:grad[_ ]?norm|eval_loss|train_loss|loss)['\"]?\s*[:=|]?\s*['\"]?[+-]?(?:nan|inf)\b",
            r"(?:Gradient|gradient|Loss) (?:overflow|is (?:nan|inf))",
            r"Current loss scale already at minimum",
            r"found (?:NaN|Inf) in",
            r"returned nan values in its \d+th output",
        ),
        (LOWER_RATE, LEAVE_FP16, CHECK_DATA),
        code="D40",
        # Of six reports with an answer, six were fp16.
        doubt=Doubt("numbers_overflow", "half_or_rate"),
    ),
    Failure("numbers_overflow", None, (Remedy("wider_numbers"),), code="D208"),
    Failure(
        # What is learned is by how much an answer is better than the others of its group.
        "rewards_alike",
        said(
            r"['\"]loss['\"]: ?-?0\.0\b[^\n]*['\"]reward_std['\"]: ?0\.0\b",
            r"['\"]frac_reward_zero_std['\"]: ?1\.0\b",
        ),
        (Remedy("harder_rewards"),),
        code="D47",
        strength=0.5,
    ),
    Failure(
        # A scale is searched for, and every try gave no number.
        "quantise_nan",
        said(
            r"Measurement/inference error \(\d+\): hidden_states",
            r"^\s*assert torch\.isnan\(\w+\)\.sum\(\) == 0",
            r"[\\/]awq[\\/]quantize[\\/]quantizer\.py[^\n]*\n\s+raise Exception\s*\n+\s*Exception",
        ),
        (Remedy("calibrate_bf16"), Remedy("fetch_again")),
        code="D45",
    ),
    Failure(
        # exllamav2 compares what it packed with what it rounded to.
        "quantise_apart",
        said(r"## Quantization error \(\d\)"),
        (Remedy("newer_exllama"), Remedy("calibrate_bf16")),
        code="D259",
    ),
    Failure(
        # GPTQ weighs each column by what the calibration texts bring to it.
        "calibration_poor",
        said(r"not positive[- ]definite"),
        (Remedy("calibrate_more"), Remedy("dampen")),
        code="D46",
    ),
    Failure(
        "positions_exceeded",
        said(
            r"sequence length \d+ cannot exceed the maximum allowed length",
            r"maximum context length is \d+ tokens|is longer than the maximum model length of \d+",
            r"longer than the specified maximum sequence length[\s\S]*?"
            r"(?:index out of range|device-side assert|srcIndex <|must match the size of tensor)",
            r"(?:max_length|sequence length|max_seq_len\w*).{0,80}(?:exceeds?|larger than|greater than|longer than)"
            r".{0,60}(?:max_position_embeddings|maximum position|position embeddings)",
        ),
        (Remedy("within_positions"), Remedy("matching_tokenizer")),
        code="D44",
    ),
    Failure(
        # The loss alone knows classes: a classifier's labels, or the tokens that a language model has to say.
        "label_range",
        said(r"Assertion .{0,40}t >= 0 && t < n_classes", r"Target -?\d+ is out of bounds"),
        (Remedy("labels_from_zero"), Remedy("labels_of_model")),
        code="D173",
        doubt=Doubt("token_range", "label_or_token"),
    ),
    Failure(
        "loss_between",
        said(
            r"Assertion .{0,40}\b\w{1,20} >= (?:zero|0) && \w{1,20} <= (?:one|1)\b",
            r"all elements of (?:input|target) should be between 0 and 1",
        ),
        (Remedy("with_logits"), LEAVE_FP16),
        code="D174",
        doubt=Doubt("non_finite", "print_range"),
    ),
    Failure(
        "token_range",
        said(
            r"index out of range in self",
            r"srcIndex < srcSelectDimSize",
            r"ind >= 0 && ind < ind_dim_size",
            r"vectorized_gather_kernel.{0,200}Assertion",
            r"exceeds the maximum vocabulary size",
            r"token id.{0,60}(?:beyond|outside|exceeds).{0,30}vocab",
        ),
        (Remedy("matching_tokenizer"),),
        code="D41",
    ),
    Failure(
        "sampling", said(r"probability tensor contains either"), (Remedy("greedy"), LEAVE_FP16), code="D42"
    ),
    Failure(
        "number_format",
        said(
            r"Flash Attention \S+ only supports? torch\.float16",
            r"result type \w+ can't be cast to the desired output type",
            r"mat1 and mat2 (?:to have|must have) the same dtype",
            r"expected scalar type \w+ but found",
            r"expected (?:input|weight|bias|query|key|value|self|mat[12])\w* (?:to have )?dtype \w+ but got",
            r"expect parameter to have scalar type of",
            r"Expected attn_mask dtype to be",
            r"expected m1 and m2 to have the same dtype",
            r"Input type \([\w.:]+\) and (?:weight|bias) type \([\w.:]+\) should be the same",
            r"self and mat2 must have the same dtype",
            r"should either all have the same dtype",
            r"value cannot be converted to type at::(?:Half|BFloat16) without overflow",
            r"Index put requires the source and destination dtypes match",
            r"(?:query|tensors?|inputs?)[^\n]{0,60}(?:to have the same dtype|should have the same dtype|"
            r"must be the same dtype)",
            r"FlashAttention only supports? fp16 and bf16|only support fp16 and bf16 data type",
        ),
        (Remedy("use_fp32", {"model.precision": "fp32"}), RESUME),
        code="D43",
    ),
    Failure(
        "dtype_of_value",
        said(r"Could not infer dtype of (?P<kind>\w+)"),
        (Remedy("look_at_batch"), Remedy("drop_column")),
        code="D179",
    ),
    Failure(
        "not_contiguous",
        said(
            r"[Tt]ensors must be contiguous",
            r"trying to save a non[- ]contiguous tensor",
            r"input is not contiguous",
            r"view size is not compatible with input tensor's size and stride",
        ),
        (Remedy("make_contiguous"),),
        code="D180",
    ),
)

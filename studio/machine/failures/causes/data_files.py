"""Failures of reading a data set."""

from __future__ import annotations

from collections.abc import Mapping

from studio.machine.failures.error_text import Reading
from studio.machine.failures.failure import Doubt, Failure, Remedy, said
from studio.machine.failures.key_errors import read_column, read_one_row
from studio.machine.failures.remedies import CHECK_DATA


def _read_rows_failed(reading: Reading) -> Mapping[str, str] | None:
    """A report that rows could not be made, with nothing of why."""
    raised = reading.last
    alone = raised is not None and raised.type == "DatasetGenerationError" and raised.wraps
    return {} if alone else None


FAILURES = (
    Failure(
        "rows_failed",
        None,
        (Remedy("above_it"), CHECK_DATA),
        code="D204",
        strength=0.5,
        reader=_read_rows_failed,
        last_resort=True,
    ),
    Failure(
        "not_utf8",
        said(r"\bUnicodeDecodeError\b", r"codec can't decode", r"not (?:valid |in )?UTF-?8\b|valid UTF-8"),
        (Remedy("save_as_utf8"),),
        code="D32",
    ),
    Failure(
        "bad_json",
        said(
            r"is not a valid JSON file",
            r"\bJSONDecodeError\b",
            r"ValueError: (?:Trailing data|Expected object or value|Unexpected character found)",
            r"JSON parse error(?!: Column)",
            r"invalid character '[^'\n]{1,6}' (?:looking for|after|in) ",
            r"Expecting (?:value|property name|',' delimiter)",
        ),
        (CHECK_DATA,),
        code="D33",
    ),
    Failure(
        "no_padding",
        said(r"does not have a padding token", r"no (?:padding token (?:is defined|for this)|pad_token\b)"),
        (Remedy("matching_tokenizer"),),
        code="D34",
    ),
    Failure(
        "no_examples",
        said(
            r"Batch does not contain any data \(`None`\)",
            r"No \(supported\) data files found",
            r"num_samples should be a positive integer",
            r"EmptyDatasetError|Please pass `features` or at least one example",
            r"doesn't contain any data files|EmptyDataError: No columns to parse",
            r"Instruction \"?train\"? corresponds to no data",
        ),
        (CHECK_DATA,),
        code="D35",
    ),
    Failure(
        "dataset_saved",
        said(
            r"Couldn't cast\s+_data_files",
            r"dataset that was saved using `?save_to_disk|Expected to load a `Dataset(?:Dict)?` object",
        ),
        (Remedy("load_from_disk"),),
        code="D80",
    ),
    Failure(
        "arrow_large",
        said(
            r"offset overflow while concatenating arrays",
            r"Length spanned by \w+ offsets \(\d+\) larger than",
            r"cannot contain more than 2147483\d+ (?:bytes|elements|child)",
            r"array cannot contain more than \d+ (?:bytes|elements)|overflow in the <class 'pyarrow",
        ),
        (Remedy("smaller_writes"), Remedy("upgrade_datasets")),
        code="D120",
    ),
    Failure(
        # The column without a name is the row itself.
        "rows_no_objects",
        said(r"JSON parse error: Column\(\) changed from"),
        (Remedy("rows_as_lines"), CHECK_DATA),
        code="D138",
        # datasets reads a file that is one list a second time, and tells only of the first.
        doubt=Doubt("mixed_columns", "json_valid"),
        # A file that is one list is read in another way then, and that one met the reason.
        unless=said(r"Column\(\) changed[\s\S]*ArrowTypeError"),
    ),
    Failure(
        "mixed_columns",
        said(
            r"\bArrow(?:Invalid|TypeError|NotImplementedError)\b[^\n]*(?:changed from|"
            r"[Cc]ould not convert|cannot mix|"
            r"[Ee]xpected (?:a )?(?:bytes|list|object|struct|int|float|bool|string)|tried to convert|cast)",
            r"\bCastError\b|\bDatasetGenerationCastError\b",
            r"All the data files must have the same columns",
            r"[Ff]eatures can't be aligned|Features are incompatible|features of the datasets? (?:can't|do not)",
            r"Couldn't (?:cast(?: array of type)?|write column)\b",
        ),
        (Remedy("same_columns"), CHECK_DATA),
        code="D36",
        unless=said(r"JSON parse error: Column\(\) changed(?![\s\S]*ArrowTypeError)"),
    ),
    Failure(
        "arrow_operation",
        said(r"Function '(?P<name>\w+)' has no kernel matching input types \((?P<has>[^)\n]{1,120})"),
        (Remedy("plain_column"), Remedy("in_python")),
        code="D205",
    ),
    Failure(
        "map_lengths",
        said(
            r"expected length \d+ but got length \d+",
            r"[Tt]he number of rows[^\n]{0,60}(?:must|should) be the same",
        ),
        (Remedy("remove_old_columns"),),
        code="D97",
    ),
    Failure(
        "data_damaged",
        said(
            r"BadZipFile|BadGzipFile|zlib\.error: Error -\d|EOFError: No data left in file",
            r"Parquet magic bytes not found",
            r"Couldn't deserialize thrift|Could not open Parquet input",
            r"Not an Arrow file|Expected to read \d+ metadata bytes, but only read",
            r"Tried reading schema message, was null or length 0",
        ),
        (Remedy("data_again"),),
        code="D88",
    ),
    Failure(
        "split_missing",
        said(
            r"Unknown split \"?(?P<name>[\w-]+)",
            r"Bad split: (?P<name>[\w-]+)",
            r"Config name is missing",
            r"BuilderConfig '?[\w-]+'? not found",
        ),
        (Remedy("listed_split"),),
        code="D89",
    ),
    Failure(
        "recorded_sizes",
        said(
            r"NonMatching(?:Splits?Sizes?|Checksum)Error|Expected(?:More|MoreDownloaded)(?:Splits|"
            r"Files)|Unexpected(?:Splits|DownloadedFile)\b"
        ),
        (Remedy("no_checks"),),
        code="D123",
    ),
    Failure(
        "mixed_files",
        said(r"Couldn't infer the same data file format for all splits"),
        (Remedy("name_files"),),
        code="D124",
    ),
    Failure(
        "dataset_newer",
        said(r"Feature type '(?P<name>\w+)' not found"),
        (Remedy("upgrade_datasets"),),
        code="D90",
    ),
    Failure(
        "json_large",
        said(r"straddling object straddles two block boundaries"),
        (Remedy("rows_as_lines"), CHECK_DATA),
        code="D119",
    ),
    Failure(
        "csv_rows",
        said(r"Error tokenizing data\.", r"\bParserError: (?:Error tokenizing|Expected \d+ fields)"),
        (Remedy("csv_quotes"), CHECK_DATA),
        code="D91",
    ),
    Failure(
        "bad_yaml",
        said(
            r"\byaml\.\w+\.(?:Scanner|Parser|Composer|Constructor)Error",
            r"\byaml: line \d+: ",
            r"while scanning a (?:simple key|quoted scalar|block scalar)|while parsing a block "
            r"(?:mapping|collection)",
        ),
        (Remedy("yaml_line"),),
        code="D92",
    ),
    Failure(
        # YAML reads 2e-4 as text, 2.0e-4 as a number.
        "number_as_text",
        said(
            r"not supported between instances of '(?:float|int)' and 'str'",
            r"not supported between instances of 'str' and '(?:float|int)'",
            r"unsupported operand type\(s\) for [^+:%]{1,3}: (?:'(?:int|float)' and 'str'|'str' and '(?:int|float)')",
            # A whole number is wanted, and the text has a point or an exponent.
            r"invalid literal for int\(\) with base 10: '[+-]?\d+(?:\.\d*(?:[eE][+-]?\d+)?|[eE][+-]?\d+)'",
        ),
        (Remedy("write_number"),),
        code="D93",
    ),
    Failure(
        "row_form",
        said(r"string indices must be integers", r"list indices must be integers or slices, not str"),
        (Remedy("print_row"), CHECK_DATA),
        code="D94",
        unless=said(r"unsloth_compiled_cache"),
    ),
    Failure(
        # -100 is what the loss leaves out; no token has that number.
        "masked_decoded",
        said(
            r"out of range integral type conversion attempted",
            r"can't convert negative int to unsigned",
            r"IndexError: piece id is out of range",
        ),
        (Remedy("replace_mask"),),
        code="D106",
    ),
    Failure(
        "formatting_function",
        said(
            r"`?formatting_func`? should return a list",
            r"[Mm]ust specify a `?formatting_func",
            r"didn't pass an? `?dataset_text_field`? or `?formatting_func",
        ),
        (Remedy("format_rows"),),
        code="D107",
    ),
    Failure(
        "image_tokens",
        said(
            r"[Ii]mage features and image tokens do not match",
            r"assert \(bos_pos\[0\] == eos_pos\[0\]\)\.all\(\)\s*?\n[^\n]*The size of tensor a",
            r"Mismatch in `?(?:image|video|audio)`? token count",
            r"number of (?:images|image tokens)[^\n]{0,80}(?:does not match|do not match|must match)",
        ),
        (Remedy("whole_images"),),
        code="D95",
    ),
    Failure(
        "image_damaged",
        said(
            r"image file is truncated|cannot identify image file|broken data stream when reading image|"
            r"Truncated File Read|\bUnidentifiedImageError\b",
        ),
        (Remedy("find_image"),),
        code="D139",
    ),
    Failure(
        "source_gone",
        said(
            r"FileNotFoundError: (?P<name>https?://[^\s'\"]+)",
            r"Couldn't find file at (?P<name>https?://(?!\S+/datasets/\S+\.py)[^\s'\"]+)",
        ),
        (Remedy("other_source"),),
        code="D140",
    ),
    Failure(
        "image_form",
        said(
            r"The channel dimension is ambiguous",
            r"Could not make (?:a flat list of|batched|a batch of) (?:images|videos)",
            r"Invalid image type\. Expected|[Ii]nvalid input type\. Must be a single image",
            r"Unable to infer channel dimension format|Unsupported number of image dimensions",
        ),
        (Remedy("image_kind"),),
        code="D108",
    ),
    Failure(
        # NumPy made an array of lists of it until 1.23.
        "ragged_rows",
        said(r"The requested array has an inhomogeneous shape|could not broadcast input array from shape \("),
        (Remedy("pad_rows"), Remedy("older_numpy")),
        code="D109",
    ),
    Failure(
        "nothing_to_join",
        said(
            r"need at least one array to (?:concatenate|stack)",
            r"expected a non-empty list of Tensors",
            r"stack expects a non-empty TensorList",
        ),
        (Remedy("look_at_parts"),),
        code="D110",
    ),
    Failure(
        "dataset_script",
        said(r"Dataset scripts are no longer supported", r"trust_remote_code` is not supported anymore"),
        (Remedy("parquet_branch"),),
        code="D81",
    ),
    Failure(
        "dataset_cache",
        said(
            r"dataset cached in a LocalFileSystem is not supported",
            r"Invalid pattern: '\*\*' can only be an entire path",
        ),
        (Remedy("upgrade_datasets"),),
        code="D82",
    ),
    Failure(
        "dataset_info",
        said(r"Undefined dataset (?P<name>\S+) in dataset_info\.json", r"Cannot open \S*dataset_info\.json"),
        (Remedy("dataset_info"),),
        code="D83",
    ),
    Failure(
        "metric_inputs",
        said(
            r"Classification metrics can't handle a mix of",
            r"Target is multiclass but average='binary'",
            r"Predictions and/or references don't match the expected format",
        ),
        (Remedy("decode_first"), Remedy("compare_format")),
        code="D175",
    ),
    Failure(
        "row_without_tokens",
        None,
        (Remedy("find_empty_row"), Remedy("shorter_prompt"), Remedy("read_at_once")),
        code="D172",
        reader=read_one_row,
        doubt=Doubt("no_columns", "which_row"),
    ),
    Failure(
        "no_columns",
        said(
            r"No columns in the dataset match the model's forward method",
            r"No columns .{0,40}match",
            # The collator was handed rows from which the tokens were taken away, or which never had any.
            r"encoding or a list of encodings to this method that includes",
            r"Invalid key: \d+ is out of bounds for size 0",
            r"KeyError: ['\"](?:input_ids|attention_mask)['\"]",
        ),
        (Remedy("tokenise_first"),),
        code="D84",
    ),
    Failure(
        "column_missing",
        said(
            r"Columns? (?:name )?\[?'?(?P<name>[\w]+)'?(?:, [^\]\n]{0,80})?\]? (?:not in the dataset|doesn't exist)",
            r"(?:None of|not in index)[^\n]{0,80}\bcolumns\b",
            r"(?:columns?|field|key) ['\"`](?P<name>\w+)['\"`] (?:is |was )?(?:not found|missing|"
            r"does not exist|not in)",
            r"(?:has no|no) (?:column|field|key) (?:named )?['\"`](?P<name>\w+)",
            r"\b(?:jsonl?|csv|parquet|data ?set|data|files?|rows?|examples?|samples?|records?|entry|entries|items?)\b"
            r"[^\n]{0,30} (?:should|must|needs? to|has to|have to) (?:have|contain|include) (?:the |a |all )?"
            r"(?:following |required )?(?:keys?|columns?|fields?)",
            r"(?:Column to (?:remove|rename)|Original column names?)(?![^\n]{0,6}'(?:train|test|validation)')"
            r"[^\n]{0,60}not in",
        ),
        (Remedy("right_columns"),),
        code="D85",
        unless=said(
            r"is not in struct|Config(?:Key|Attribute)Error|Column (?:train|test|validation|eval) not in the dataset"
        ),
        reader=read_column,
    ),
    Failure(
        "streamed_rows",
        said(
            r"object of type '\w*IterableDataset\w*' has no len\(\)",
            r"'\w*IterableDataset\w*' object (?:has no attribute|is not subscriptable|does not support)",
            r"IterableDataset\.\w+\(\) got an unexpected keyword argument",
            r"does not implement __len__, max_steps has to be",
            r"[\\/]utils[\\/]data[\\/]dataset\.py\"?,? (?:line \d+, )?in __getitem__\s+raise NotImplementedError",
        ),
        (Remedy("load_whole"), Remedy("streamed_ways"), Remedy("upgrade_all")),
        code="D161",
    ),
    Failure(
        "length_grouping",
        said(r"Can only automatically infer lengths for datasets whose items are"),
        (Remedy("no_length_grouping"),),
        code="D160",
    ),
    Failure(
        "text_kind",
        said(
            r"[Tt]ext(?:EncodeInput| input)s? must (?:be )?(?:of type|Union)|TextInputSequence must be",
            r"is not valid\. Should be a string, a list/tuple of strings",
        ),
        (Remedy("text_only"), Remedy("call_by_name")),
        code="D116",
    ),
    Failure(
        "model_inputs",
        said(
            r"(?:have to|must) specify (?:either |exactly one of |at least one of )?`?"
            r"(?P<name>(?:decoder_)?(?:input_ids|inputs_embeds|pixel_values|input_values|"
            r"input_features)\b[^\n]{0,60})"
        ),
        (Remedy("look_at_batch"), Remedy("keep_columns"), Remedy("right_task")),
        code="D115",
    ),
    Failure(
        "batch_lengths",
        said(
            r"Trying to resize storage that is not resizable",
            r"Unable to create tensor, you should probably activate",
            r"expected sequence of length \d+ at dim \d",
            r"stack expects each tensor to be equal size",
            r"setting an array element with a sequence(?!\. The requested array has an inhomogeneous)",
            r"too many dimensions 'str'",
            r"each element in list of batch should be of equal size",
        ),
        (Remedy("pad_batch"), Remedy("drop_text_columns")),
        code="D86",
    ),
)

"""Cases of grouped products: experts without rows, ragged widths, packed weights whose blocks straddle experts."""

CASES = (
    {"rows": 70, "width": 100, "dtype": "bfloat16"},
    {"rows": 1, "width": 64, "dtype": "float16"},
    {"rows": 150, "width": 48, "dtype": "float16", "outputs": 130, "experts": 3, "rank": 20},
    {"rows": 70, "width": 72, "dtype": "float16", "outputs": 40, "swapped": True},
    {"rows": 70, "width": 72, "dtype": "bfloat16", "outputs": 176, "swapped": True},
    {"rows": 70, "width": 64, "dtype": "bfloat16", "outputs": 48, "packed": True},
    {"rows": 33, "width": 36, "dtype": "float16", "outputs": 50, "packed": True, "nested": False},
    {"rows": 33, "width": 128, "dtype": "float16", "outputs": 128, "packed": True},
    {"rows": 9, "width": 64, "dtype": "float16", "experts": 17},
    {"rows": 20, "width": 64, "dtype": "float16", "experts": 1, "packed": True},
    {"rows": 0, "width": 64, "dtype": "float16"},
)
LARGE = tuple(
    {
        "rows": rows,
        "width": width,
        "dtype": dtype,
        "outputs": outputs,
        "experts": experts,
        "rank": rank,
        "packed": packed,
    }
    for dtype in ("bfloat16", "float16")
    for rows in (1, 257, 4096)
    for width, outputs, experts, rank in ((2048, 1536, 32, 16), (768, 2048, 32, 8), (2880, 720, 8, 64))
    for packed in (False, True)
)
COMPILE = (
    {"width": 2048, "outputs": 1536, "experts": 4, "rank": 16},
    {"width": 768, "outputs": 256, "experts": 4, "rank": 16, "packed": True},
)
# An adapter's products are of plain weights, and the transposed ones have their strides the other way round.
EDGES = ({"width": 72, "outputs": 48, "rank": 4, "packed": True, "nested": False},)

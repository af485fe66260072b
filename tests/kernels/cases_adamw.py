"""Cases of AdamW: odd lengths, with and without clipping, and a step that overflows."""

CASES = (
    *({"rows": rows, "width": width, "dtype": "float32"} for rows, width in ((1, 1), (7, 100), (33, 100))),
    {"rows": 7, "width": 100, "dtype": "float32", "limit": 0.0, "steps": 3},
    {"rows": 7, "width": 100, "dtype": "float32", "overflow": True},
    {"rows": 0, "width": 64, "dtype": "float32"},
)
# More blocks than there are partial sums of squares: some programs take several.
LARGE = tuple({"rows": rows, "width": 4099, "dtype": "float32"} for rows in (257, 5000))
COMPILE = ({"width": 4096}, {"width": 128, "steps": 1})
EDGES = ({"width": 33}, {"width": 64})

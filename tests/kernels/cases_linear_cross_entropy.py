"""Cases of the loss head: every term of the loss, tiles that do not divide, sure tokens, factors of every kind."""

DTYPES = ("float32", "float16", "bfloat16")


def _make_cases():
    for dtype in DTYPES:
        small = {"rows": 7, "width": 100, "dtype": dtype}
        yield small
        yield small | {"rows": 5, "columns": 64}
        yield small | {"softcap": 30.0, "columns": 128, "bias": True}
        yield small | {"columns": 96, "row_scale": True}
        yield small | {"softcap": 3.0, "columns": 64}
        yield small | {"sure": 3.0, "columns": 64, "logit_scale": 1.5}
        yield small | {"gradient": False, "columns": 64}
        yield small | {"reduction": "none", "scale": -1.0, "through_autograd": True}
        yield small | {"layout": "sliced", "in_place": True}
        yield {"rows": 3, "width": 16, "dtype": dtype, "vocabulary": 5000, "columns": 4608}
        yield {"rows": 1, "width": 64, "dtype": dtype, "vocabulary": 1001}
        yield small | {"ignored": 1.0}
        yield small | {"trained": True, "sure": 3.0, "row_scale": True}
        yield small | {"trained": True, "softcap": 3.0, "logit_scale": 1.5, "bias": True, "in_place": True}
        yield {"rows": 600, "width": 16, "dtype": dtype, "vocabulary": 6144, "trained": True}
    # The loss scale of float16 training, over a row's share of the loss.
    yield {"rows": 7, "width": 100, "dtype": "float16", "scale": 65536.0 / 4096}
    # Later tiles exceed earlier ones by far: the sums are counted anew.
    for dtype in DTYPES:
        yield {"rows": 7, "width": 64, "dtype": dtype, "columns": 16, "ramp": 60.0}
        yield {"rows": 3, "width": 16, "dtype": dtype, "vocabulary": 6144, "columns": 6144, "ramp": 120.0}
    yield {"rows": 0, "width": 64, "dtype": "float32"}


CASES = tuple(_make_cases())
LARGE = tuple(
    {"rows": rows, "width": width, "dtype": dtype, "vocabulary": vocabulary, **more}
    for rows, width, vocabulary in ((2500, 2304, 8000), (300, 896, 50257))
    for dtype in DTYPES
    for more in (
        {"sure": 2.0},
        {"trained": True},
        {"rows": 4096, "softcap": 30.0, "columns": 4096},
        {"columns": 2000, "sure": 2.0},
    )
)
COMPILE = (
    {"width": 4096, "vocabulary": 4112},
    {"width": 100, "vocabulary": 300, "softcap": 30.0},
    {"width": 100, "vocabulary": 300, "gradient": False},
    {"width": 100, "vocabulary": 300, "trained": True},
)
EDGES = ({"width": 16384, "vocabulary": 257}, {"width": 8, "vocabulary": 1})

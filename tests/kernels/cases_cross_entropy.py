"""Cases of cross-entropy on given logits: every term of the loss, sure tokens, rows in parts, factors of every kind."""

DTYPES = ("float32", "float16", "bfloat16")


def _make_cases():
    for dtype in DTYPES:
        small = {"rows": 7, "width": 257, "dtype": dtype}
        yield small
        yield small | {"softcap": 30.0, "logit_scale": 4.0}
        yield small | {"label_smoothing": 0.1, "z_loss": 1e-4, "row_scale": True}
        yield small | {"softcap": 5.0, "label_smoothing": 0.1, "z_loss": 1e-2}
        yield small | {"sure": 20.0, "scale": 16.0}
        yield small | {"gradient": False, "width": 1001}
        yield small | {"through_autograd": True, "row_scale": True}
        yield small | {"layout": "sliced"}
        yield small | {"layout": "transposed", "through_autograd": True}
        yield small | {"ignored": 1.0}
        # More than one step a program: in one program (17 rows) and in several.
        yield {"rows": 17, "width": 4500, "dtype": dtype, "label_smoothing": 0.1}
        yield {"rows": 2, "width": 9001, "dtype": dtype, "label_smoothing": 0.1}
        yield {"rows": 2, "width": 9001, "dtype": dtype, "gradient": False}
        yield {"rows": 1, "width": 1, "dtype": dtype}
    # The largest logits that float16 holds.
    yield {"rows": 7, "width": 257, "dtype": "float16", "spread_logits": 1.5e4}
    yield {"rows": 0, "width": 64, "dtype": "float32"}


CASES = tuple(_make_cases())
LARGE = tuple(
    {"rows": rows, "width": width, "dtype": dtype, **more}
    for rows, width in ((1000, 32000), (600, 128256), (40, 151937))
    for dtype in DTYPES
    for more in ({"sure": 10.0}, {"softcap": 30.0, "label_smoothing": 0.1, "z_loss": 1e-4})
)
COMPILE = (
    {"width": 4096},
    {"width": 257, "softcap": 30.0, "label_smoothing": 0.1, "z_loss": 1e-4},
    {"width": 1000, "gradient": False},
)
EDGES = ({"width": 70000}, {"width": 1, "row_scale": True})

"""Reads what an assertion without words wants: its condition says what must be there, of which kind, or alike."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from studio.machine.failures.statements import LONGEST_SLOT, Statement

SIGNS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.In: "in"}
FILES = re.compile(r"(?:^|\.)(?:exists|isfile|isdir|is_file|is_dir)$")
CARD = re.compile(r"(?:cuda|xpu|hip|npu)\.is_available$|is_(?:cuda|torch_cuda)_available$")


def read_condition(condition: str) -> Statement | None:
    """Return what `condition`, an assertion that did not hold or what it asserts, wants; None for nothing."""
    line = condition.strip() if condition.strip().startswith("assert ") else f"assert {condition.strip()}"
    try:
        asserted = ast.parse(line).body[0]
    except (SyntaxError, ValueError):
        return None
    tree = asserted.test if isinstance(asserted, ast.Assert) else None
    if tree is None:
        return None
    stated = [found for part in _parts(tree) if (found := _state(part)) is not None]
    return stated[0] if stated else None


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the conditions that `and` joins: any of them may be the one that failed, the first is as good as others."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        for value in node.values:
            yield from _parts(value)
    else:
        yield node


def _state(node: ast.expr) -> Statement | None:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _compare(node.left, node.ops[0], node.comparators[0])
    if isinstance(node, ast.Call):
        return _call(node)
    if isinstance(node, ast.Attribute) and node.attr == "is_cuda":
        return Statement("must", {"name": _say(node.value), "wants": "be on the graphics card (cuda)"})
    if isinstance(node, ast.Attribute) and node.attr == "requires_grad":
        return Statement("must", {"name": _say(node.value), "wants": "require a gradient (be trainable)"})
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        return Statement("wanted", {"name": _say(node)})
    return None


def _compare(left: ast.expr, sign: ast.cmpop, right: ast.expr) -> Statement | None:
    absent = isinstance(right, ast.Constant) and right.value is None
    if isinstance(sign, ast.IsNot) and absent:
        return Statement("wanted", {"name": _say(left)})
    if isinstance(sign, ast.Is | ast.Eq) and absent:
        return Statement("must", {"name": _say(left), "wants": "be None (not be given)"})
    if isinstance(sign, ast.In):
        return Statement("choice", {"name": _say(left), "wants": f"in {_say(right)}"})
    if isinstance(sign, ast.Eq) and isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod):
        wants = f"be divisible by {_say(left.right)}"
        return Statement("must", {"name": _say(left.left), "wants": wants})
    if isinstance(sign, ast.Eq) and not isinstance(right, ast.Constant):
        return Statement("apart", {"first": _say(left), "second": _say(right)})
    if type(sign) in SIGNS:
        return Statement("must", {"name": _say(left), "wants": f"be {SIGNS[type(sign)]} {_say(right)}"})
    return None


def _call(node: ast.Call) -> Statement | None:
    called = ast.unparse(node.func)
    if called == "isinstance" and len(node.args) == 2:
        return Statement(
            "must", {"name": _say(node.args[0]), "wants": f"be of the kind {_say(node.args[1])}"}
        )
    if CARD.search(called):
        return Statement("absent", {"name": f"the graphics card ({called}())"})
    if FILES.search(called):
        target = node.args[0] if node.args else getattr(node.func, "value", node.func)
        return Statement("absent", {"name": _say(target)})
    if called in ("hasattr", "all", "any", "callable") and node.args:
        return Statement("must", {"name": _say(node.args[0]), "wants": f"fulfil {_say(node)}"})
    return None


def _say(node: ast.expr) -> str:
    words = ast.unparse(node)
    return words if len(words) <= LONGEST_SLOT else words[:LONGEST_SLOT] + " ..."

"""The answer is JSON that follows a JSON schema: one for all rows, or each row's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from studio.core.errors import StudioError
from studio.core.i18n import literal, text
from studio.core.json_file import parse_json
from studio.core.knob import knob
from studio.core.metrics.json_fields import NOTHING, read_object
from studio.engine.guarded_code.pool import CodeLimits, CodePool, Failed, Program
from studio.engine.guarded_code.programs import match_schema
from studio.engine.rewards.given_answer import take_part
from studio.engine.rewards.reward import Answered, Reward, RowReward

COLUMNS = ("json_schema", "schema")
"""Where a row's own schema stands, where nobody says it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonSchema(RowReward):
    """1 where it follows, `valid` for any other JSON, else 0."""

    name: ClassVar[str] = "json_schema"

    schema: str = knob("")
    schema_column: str = knob("")
    valid: float = knob(0.0, unit="share", minimum=0.0, maximum=1.0)
    tag: str = knob("")

    @contextmanager
    def opened(self, folder: Path, seed: int) -> Iterator[Reward]:
        """See RowReward. Raises StudioError for a schema that cannot be judged by, as a whole."""
        if self.schema:
            try:
                schema = parse_json(self.schema)
                match_schema.check(schema, schema)
            except (ValueError, RecursionError) as error:
                raise StudioError(
                    text("reward.schema"), literal(str(error)), text("reward.schema.fix")
                ) from error
        program = Program(path=Path(match_schema.__file__), function=match_schema.match.__name__, form="text")
        with CodePool(program, CodeLimits(), seed=seed) as pool:
            yield OpenJsonSchema(self, pool)


class OpenJsonSchema:
    """A schema whose children stand."""

    def __init__(self, reward: JsonSchema, pool: CodePool) -> None:
        self.name, self._reward, self._pool = reward.name, reward, pool

    def score(self, answers: Sequence[Answered]) -> Sequence[float | None | Failed]:
        """See Reward: None for a row without a schema."""
        given = [read_object(take_part(one.answer, self._reward.tag) or "") for one in answers]
        schemas = [self._find_schema(one.columns) for one in answers]
        rows = [
            {
                "answer": "", "prompt": [], "expected": None, "length_tokens": 0, "ended": True,
                "columns": {"values": value, "schemas": schema},
            }
            for value, schema in zip(given, schemas, strict=True) if value is not NOTHING and _is_known(schema)
        ]  # fmt: skip
        found = iter(self._pool.judge(rows) if rows else ())
        return [
            schema if not _is_known(schema) else 0.0 if value is NOTHING else self._raise(next(found))
            for value, schema in zip(given, schemas, strict=True)
        ]

    def _find_schema(self, columns: Mapping[str, object]) -> Any:
        """Return the schema that a row is held against; None without one, Failed where it is no JSON."""
        reward = self._reward
        names = [reward.schema_column] if reward.schema_column else COLUMNS
        found = reward.schema or next((columns[name] for name in names if columns.get(name)), None)
        try:
            return parse_json(found) if isinstance(found, str) else found
        except ValueError as error:
            return Failed("raised", str(error))

    def _raise(self, score: float | None | Failed) -> float | None | Failed:
        """Any JSON has `valid`, the rest is for what follows the schema."""
        if score is None or isinstance(score, Failed):
            return score
        return self._reward.valid + (1 - self._reward.valid) * score


def _is_known(schema: Any) -> bool:
    return schema is not None and not isinstance(schema, Failed)

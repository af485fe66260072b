"""The score of a reward model that was trained here: of a run with the objective `reward`, or of its merged export."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from studio.core.errors import StudioError
from studio.core.i18n import Text, literal, text
from studio.core.knob import knob
from studio.data.conversation import Conversation, Message
from studio.data.row import RowError
from studio.engine.guarded_code.pool import Failed
from studio.engine.rewards.given_answer import InformedReward
from studio.engine.rewards.reward import Answered, Reward

if TYPE_CHECKING:  # a window lists rewards without torch
    from studio.data.render import Renderer


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelReward(InformedReward):
    """Higher for the better of two answers to one prompt; its zero and its unit are its own."""

    name: ClassVar[str] = "model"
    needs_expected: ClassVar[bool] = True

    folder: str = knob("")

    @contextmanager
    def opened(self, folder: Path, seed: int) -> Iterator[Reward]:
        """See RowReward. Raises StudioError where there is no reward model."""
        from studio.data.render import Renderer

        model, tokenizer = load_scorer(Path(self.folder))
        yield OpenModel(model, Renderer(tokenizer, "answers"))


class OpenModel:
    """A reward model in memory: on the graphics card in 16 bits where there is one, else on the processor in fp32."""

    name = ModelReward.name

    def __init__(self, model: Any, renderer: Renderer) -> None:
        self._model, self._renderer = model, renderer

    def score(self, answers: Sequence[Answered]) -> Sequence[float | None | Failed]:
        """See Reward. One after the other: what stands beside an answer changes no bit of its score."""
        return [self._judge(answered) for answered in answers]

    def _judge(self, answered: Answered) -> float | Failed:
        import torch

        turns = (*answered.prompt, {"role": "assistant", "content": answered.answer})
        messages = tuple(Message(str(turn["role"]), str(turn.get("content") or "")) for turn in turns)
        try:
            layout = self._renderer.lay_out(Conversation(messages=messages))
        except RowError as error:  # an answer that holds a word of control, say
            return Failed("raised", f"{error.code.name}")
        ids = self._renderer.tokenize([layout], None)[0].token_ids
        device = next(self._model.parameters()).device
        with torch.no_grad():
            given = torch.from_numpy(ids).long()[None].to(device)
            return float(self._model(input_ids=given).logits[0, 0])


def load_scorer(folder: Path) -> tuple[Any, Any]:
    """Return the reward model of a run's folder or of a merged export, and its tokenizer. Raises StudioError."""
    from studio.models.architectures import holds_score

    if (folder / "run.json").is_file():
        from studio.engine.run_folder import RunFolder

        run = RunFolder(folder)
        artifact, recipe = folder / run.read_record().artifact, run.read_recipe()
        if recipe.objective != "reward" or artifact == folder:
            raise _refuse(folder, text("reward.model.other"))
        return _load_adapter(artifact, recipe.model.source)
    if not folder.is_dir() or not holds_score(folder) or (folder / "adapter_config.json").is_file():
        raise _refuse(folder, text("reward.model.other"))
    from studio.models.score_head import load_classifier

    try:
        return _place(load_classifier(folder)), _load_tokenizer(folder)
    except (OSError, ValueError) as error:
        raise _refuse(folder, literal(str(error)[:300])) from error


def _load_adapter(artifact: Path, source: str) -> tuple[Any, Any]:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification

    from studio.models.catalog import inspect_model

    facts = inspect_model(source)
    try:
        base = AutoModelForSequenceClassification.from_pretrained(
            facts.folder, num_labels=1, dtype=torch.float32, trust_remote_code=False, local_files_only=True
        )
        tokenizer = _load_tokenizer(artifact)
        base.config.pad_token_id = base.config.pad_token_id or tokenizer.pad_token_id
        return _place(PeftModel.from_pretrained(base, artifact).eval()), tokenizer
    except (OSError, ValueError) as error:
        raise _refuse(artifact.parent, literal(str(error)[:300])) from error


def _load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def _place(model: Any) -> Any:
    import torch

    return model.to("cuda", torch.bfloat16) if torch.cuda.is_available() else model


def _refuse(folder: Path, why: Text) -> StudioError:
    return StudioError(
        text("reward.model.missing", name=folder.name or "."), why, text("reward.model.missing.fix")
    )

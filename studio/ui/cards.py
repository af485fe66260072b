"""The HTML of what the window tells: facts, plans, problems, progress, logs, masks and talk, every value escaped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from studio.core.errors import Problem
from studio.core.events import Diagnosis, RunStalled
from studio.core.facts import BackendPlan, MachineFacts, ModelFacts
from studio.core.fields import knobs_of
from studio.core.recipe import Recipe
from studio.core.record import RunRecord
from studio.core.text import Text
from studio.ui.live import LiveView

Say = Callable[..., str]
MASK_TOKENS = 2000
"""More tokens than that are cut from the mask view: a browser takes 0.3 s for 2000 spans."""


def size_words(size_bytes: float) -> str:
    """Return a size in the unit that fits: `14.2 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024 or unit == "GiB":
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return ""


def count_words(count: int) -> str:
    """Return a large number in short: `7.5 M`, `8.0 B`."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= limit:
            return f"{count / limit:.1f} {unit}"
    return str(count)


def time_words(seconds: float) -> str:
    """Return a duration as m:ss or h:mm:ss."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def note_card(words: str, kind: str = "quiet") -> str:
    """Return one sentence in a box; `kind` is quiet, good, warn or bad."""
    return f'<div class="card note {kind}"><p>{escape(words)}</p></div>'


def facts_card(title: str, rows: Iterable[tuple[str, str]], note: str = "") -> str:
    """Return a card of names and values; `note` is HTML made here."""
    body = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    return f'<div class="card"><h3>{escape(title)}</h3><dl>{body}</dl>{note}</div>'


def model_card(model: ModelFacts, say: Say) -> str:
    """Return what a model folder is; of a hub model that is not on this machine only that much is known."""
    name = model_name(model, say)
    if not model.folder:
        return facts_card(name, [], f'<p class="flag">{escape(say("ui.model.download"))}</p>')
    stored = model.dtype if model.quantization in ("", "none") else f"{model.dtype}, {model.quantization}"
    rows = [
        (say("ui.model.family"), model.family),
        (say("ui.model.parameters"), count_words(model.parameters)),
        (say("ui.model.size"), size_words(model.weight_bytes)),
        (say("ui.model.dtype"), stored),
        (say("ui.model.layers"), f"{model.layers} × {model.hidden_size}"),
        (say("ui.model.context"), f"{model.max_positions:,}"),
        (say("ui.model.vocabulary"), f"{model.vocabulary:,}"),
        (say("ui.model.template"), say("ui.yes" if model.has_chat_template else "ui.no")),
    ]
    if model.trainable.ok:
        return facts_card(name, rows, f'<p class="flag good">{escape(say("ui.model.trainable"))}</p>')
    reason = say(model.trainable.reason) if model.trainable.reason else ""
    flag = f'<p class="flag bad">{escape(say("ui.model.not_trainable"))} {escape(reason)}</p>'
    return facts_card(name, rows, flag)


def model_name(model: ModelFacts, say: Say) -> str:
    """Return what a model is called here."""
    return say("ui.model.demo") if model.source == "demo" else model.name


def machine_words(machine: MachineFacts, say: Say) -> str:
    """Return the machine in one short line, for the header."""
    ram = f"{machine.ram_bytes / 2**30:.0f} GiB"
    if not machine.gpus:
        return say("ui.machine.cpu", cores=machine.cores, ram=ram)
    gpu = machine.gpus[0]
    name = f"{len(machine.gpus)} × {gpu.name}" if len(machine.gpus) > 1 else gpu.name
    return say("ui.machine.gpu", name=name, memory=f"{gpu.vram_bytes / 2**30:.0f} GiB")


def problems_card(problems: Sequence[Problem], say: Say) -> str:
    """Return every problem with the field it belongs to; a sentence when there is none."""
    if not problems:
        return note_card(say("ui.check.fine"), "good")
    labels = {knob.path: say(knob.label) for knob in knobs_of(Recipe)}
    items = []
    for problem in sorted(problems, key=lambda one: one.severity):
        field = labels.get(problem.field, problem.field)
        head = f"<b>{escape(field)}</b> " if field else ""
        items.append(
            f'<li class="{escape(problem.severity)}">{head}{escape(say(problem.message))} '
            f"<em>{escape(say(problem.fix))}</em></li>"
        )
    errors = sum(problem.severity == "error" for problem in problems)
    title = say("ui.check.errors", count=errors) if errors else say("ui.check.warnings", count=len(problems))
    kind = "bad" if errors else "warn"
    return f'<div class="card problems {kind}"><h3>{escape(title)}</h3><ul>{"".join(items)}</ul></div>'


def plan_card(plan: BackendPlan | None, swaps: Sequence[Text], say: Say) -> str:
    """Return every choice of the plan with its reason."""
    title = escape(say("ui.plan.title"))
    if plan is None:
        return (
            f'<div class="card plan"><h3>{title}</h3><p class="soft">{escape(say("ui.plan.none"))}</p></div>'
        )
    names = ("device", "dtype", "attention", "quantization", "optimizer", "checkpointing")
    rows = [(say(f"ui.plan.{name}"), getattr(plan, name)) for name in names]
    rows += [(op, choice) for op, choice in plan.kernels.items()]
    body = "".join(
        f'<div class="choice"><span>{escape(name)}</span><b>{escape(_choice_words(choice.value, say))}</b>'
        f"<p>{escape(say(choice.reason))}</p></div>"
        for name, choice in rows
    )
    extra = "".join(f"<li>{escape(say(swap))}</li>" for swap in swaps)
    offers = "".join(
        f"<li><b>{escape(say(offer.title))}</b> {escape(say(offer.why))}</li>" for offer in plan.offers
    )
    lists = f"<ul>{extra}{offers}</ul>" if extra or offers else ""
    return f'<div class="card plan"><h3>{title}</h3>{body}{lists}</div>'


def _choice_words(value: Any, say: Say) -> str:
    if isinstance(value, bool):
        return say("ui.yes" if value else "ui.no")
    return say("ui.no") if value in (None, "none", "") else str(value)


def status_card(view: LiveView, state: str, say: Say, now_s: float | None = None) -> str:
    """Return where a run stands: state, phase, bar, and figures."""
    share = view.step / view.total_steps if view.total_steps else 0.0
    running = state == "running"
    phase = say(f"ui.phase.{view.phase}") if running and view.phase else ""
    end_s = (now_s or time.time()) if running else view.updated_s
    speed = f"{view.tokens_per_s:,.0f} {say('ui.status.tokens_per_s')}"
    figures = [
        (say("ui.status.step"), f"{view.step} / {view.total_steps or '–'}"),
        (say("ui.status.loss"), f"{view.loss:.4f}" if view.loss is not None else "–"),
        (say("ui.status.speed"), speed if view.tokens_per_s else "–"),
        (say("ui.status.elapsed"), time_words(end_s - view.started_s) if view.started_s else "–"),
    ]
    if view.left_s is not None and running:
        figures.append((say("ui.status.left"), time_words(view.left_s)))
    if view.eval_loss is not None:
        figures.insert(2, (say("ui.status.eval_loss"), f"{view.eval_loss:.4f}"))
    cells = "".join(
        f"<div><span>{escape(name)}</span><b>{escape(value)}</b></div>" for name, value in figures
    )
    unsaved = state == "stopped" and not view.saved_step
    words = "ui.state.stopped_unsaved" if unsaved else f"ui.state.{state}"
    return (
        f'<div class="card status" data-state="{escape(state)}" data-step="{view.step}" data-saved="{view.saved_step}">'
        f'<div class="state" role="status"><i></i><b>{escape(say(words))}</b>'
        f"<span>{escape(phase)}</span>{_twin_badge(view, say)}</div>"
        f'<div class="bar" role="progressbar" aria-valuenow="{share * 100:.0f}" aria-valuemin="0" aria-valuemax="100">'
        f'<i style="width:{share * 100:.2f}%"></i></div><div class="figures">{cells}</div></div>'
    )


def _twin_badge(view: LiveView, say: Say) -> str:
    """Which ops run as their PyTorch twins since when; "" while all run as planned."""
    if not view.twins:
        return ""
    ops, first = ", ".join(op for op, _ in view.twins), min(step for _, step in view.twins)
    return f'<span class="badge">{escape(say("ui.run.twins", ops=ops, step=first))}</span>'


def stall_card(stall: RunStalled | None, say: Say) -> str:
    """Return what stands still, why as far as it can be told, and where; "" while the run moves."""
    if stall is None:
        return ""
    words = say(stall.message)
    told = not stall.frame or stall.frame in words  # the verdict `blocked` names the place itself
    where = "" if told else f"<p><code>{escape(say('ui.stall.where', frame=stall.frame))}</code></p>"
    return (
        f'<div class="card problems warn" role="alert" data-verdict="{escape(stall.verdict)}">'
        f"<h3>{escape(say('ui.stall.title', step=stall.step))}</h3><p>{escape(words)}</p>{where}</div>"
    )


def failure_card(diagnosis: Diagnosis | None, say: Say) -> str:
    """Return what ended a run, why, and what helps; "" without a failure."""
    if diagnosis is None:
        return ""
    fixes = "".join(f"<li>{escape(say(fix.title))}</li>" for fix in diagnosis.fixes)
    return (
        f'<div class="card problems bad" role="alert"><h3>{escape(say(diagnosis.what))}</h3>'
        f"<p>{escape(say(diagnosis.why))}</p><ul>{fixes}</ul></div>"
    )


def log_card(view: LiveView, say: Say) -> str:
    """Return the log's last lines, oldest first."""
    if not view.log:
        return f'<div class="log soft">{escape(say("ui.log.empty"))}</div>'
    lines = "".join(
        f'<p class="{line.level}"><time>{time.strftime("%H:%M:%S", time.localtime(line.time_s))}</time>'
        f"{escape(say(line.message))}</p>"
        for line in view.log
    )
    return f'<div class="log"><div>{lines}</div></div>'


def chip(view: LiveView | None, state: str, say: Say) -> str:
    """Return the run's state for the header."""
    if view is None:
        return f'<span class="chip"><i></i>{escape(say("ui.chip.idle"))}</span>'
    share = f" {view.step / view.total_steps:.0%}" if view.total_steps and state == "running" else ""
    return f'<span class="chip {escape(state)}"><i></i>{escape(say(f"ui.state.{state}"))}{share}</span>'


def run_label(record: RunRecord, say: Say) -> str:
    """Return a run's name in a picker: when, what, how it stands."""
    when = time.strftime("%m-%d %H:%M", time.localtime(record.created_s))
    name = record.name or record.base or record.run
    return f"{when} · {name} · {say(f'ui.state.{record.state}')}"


def mask_card(tokens: Sequence[Any], cut: bool, say: Say) -> str:
    """Return the tokens of one example, the trained ones highlighted; neighbours of one kind are one span."""
    runs: list[tuple[bool, list[str]]] = []
    for token in tokens[:MASK_TOKENS]:
        if not runs or runs[-1][0] != token.trained:
            runs.append((token.trained, []))
        runs[-1][1].append(token.text)
    spans = "".join(
        f"<mark>{escape(''.join(part))}</mark>" if trained else f"<span>{escape(''.join(part))}</span>"
        for trained, part in runs
    )
    trained = sum(token.trained for token in tokens)
    notes = [say("ui.mask.count", trained=trained, total=len(tokens))]
    if cut:
        notes.append(say("ui.mask.cut"))
    if len(tokens) > MASK_TOKENS:
        notes.append(say("ui.mask.more", shown=MASK_TOKENS))
    return f'<div class="mask">{spans}</div><p class="soft">{escape(" ".join(notes))}</p>'


def text_card(words: str) -> str:
    """Return text as it is, line breaks kept."""
    return f'<div class="mask">{escape(words)}</div>'


def chat_card(title: str, messages: Sequence[Mapping[str, str]], empty: str) -> str:
    """Return a conversation as bubbles."""
    sides = {"user": "mine"}
    bubbles = "".join(
        f'<div class="bubble {sides.get(message["role"], "theirs")}">{escape(message["content"]) or "…"}</div>'
        for message in messages
    )
    body = bubbles or f'<p class="soft">{escape(empty)}</p>'
    body = f'<div class="scroll"><div class="bubbles">{body}</div></div>'
    return f'<div class="talk"><h3>{escape(title)}</h3>{body}</div>'


def export_card(path: str, size_bytes: int, say: Say) -> str:
    """Return where an export lies and how large it is."""
    return (
        f'<div class="card problems good"><h3>{escape(say("ui.export.done"))}</h3>'
        f"<p><code>{escape(path)}</code></p><p>{escape(size_words(size_bytes))}</p></div>"
    )

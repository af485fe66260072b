"""The ways in which talks are written as one text: what stands before each turn."""

from __future__ import annotations

import re
from dataclasses import dataclass

from studio.data.formats.aliases import ANSWERS, INPUT, INSTRUCTION, QUESTIONS

ENDS = re.compile(
    r"(?:<\|im_end\|>|<\|eot_id\|>|<\|end_of_text\|>|<\|begin_of_text\|>|<end_of_turn>|<bos>|<eos>|<\|end\|>|<\|endoftext\|>|"
    r"</s>|<s>|<\|eom_id\|>|\[/(?:system|user|assistant|human|bot|model|ai)\])\s*",
    re.I,
)
WRAPPED = re.compile(r"\s*<([a-z]+)>\s*(.*?)\s*</\1>\s*", re.S)
"""A text that stands as a whole between a tag and its end."""


def _foreign(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names in other scripts and with marks, which stand for nothing else in an English text."""
    return tuple(name.replace("_", " ") for name in names if not name.isascii())


USERS = ("human", "user", "instruction", "question", "q", "prompt", "prompter", "customer", "client", "visitor", "usr",
         "frage", "f", "问", "用户", "问题", "指令", "pregunta", "usuario", "nutzer", "benutzer", "kunde",
         "utilisateur", "ユーザー", "사용자", "пользователь", "المستخدم",
         *_foreign((*INSTRUCTION, *QUESTIONS)))  # fmt: skip
MODELS = ("assistant", "response", "answer", "a", "output", "bot", "ai", "gpt", "chatgpt", "model", "agent",
          "completion", "antwort", "answers", "reply", "chatbot", "claude", "答", "助手", "回答", "respuesta",
          "asistente", "assistent", "support", "operator", "advisor", "応答", "アシスタント", "응답", "어시스턴트",
          "ассистент", "المساعد", *_foreign(ANSWERS))  # fmt: skip
BESIDE = ("input", "context", "eingabe", "kontext", *_foreign(INPUT))
SYSTEMS = ("system", "系统")
TOOLS = ("tool", "tool response", "tool result", "function response", "function result")
WHO = "|".join(
    re.escape(word) for word in sorted((*USERS, *MODELS, *BESIDE, *SYSTEMS, *TOOLS), key=len, reverse=True)
)
TIME = r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4},?\s+\d{1,2}[:.]\d{2}(?:[:.]\d{2})?(?:\s?[APap]\.?\s?[Mm]\.?)?"
CLOCK = r"(?:[\[(]?\d{1,2}:\d{2}(?::\d{2})?(?:[.,]\d{1,3})?[\])]?[ \t]*[-–]?[ \t]*)?"
"""What recordings have before a speaker: `[00:00:07] `."""
SECTION = re.compile(r"^[ \t]*(?:[=*_~#-]{3,}[^\n]{0,80}?[=*_~#-]{3,}|[=*_~-]{3,})[ \t]*$", re.M)
"""A line of its own between two talks: `=== Call 12 ===`, `-----`."""
NAME = r"[^\W\d_][^\n:<>\[\]{}\"“”=/\\]{0,30}?"


@dataclass(frozen=True, kw_only=True, slots=True)
class Style:
    """One way to write a talk as text: what stands before each turn."""

    name: str
    mark: re.Pattern[str]
    """With the groups `who` and, in messengers, `time`."""
    timed: bool = False
    single: bool = False
    """Whether a question and its answer are a talk of their own where a plain file holds many."""


STYLES: tuple[Style, ...] = (
    Style(name="chatml", mark=re.compile(r"<\|im_start\|>\s*(?P<who>\w+)[^\n]*\n")),
    Style(name="headers", mark=re.compile(r"<\|start_header_id\|>\s*(?P<who>\w+)\s*<\|end_header_id\|>\s*")),
    Style(name="turns", mark=re.compile(r"<start_of_turn>\s*(?P<who>\w+)\s*\n")),
    Style(
        name="bars",
        mark=re.compile(r"<\|?(?P<who>system|user|assistant|prompter|human|bot|model|ai)\|?>\s*:?\s*", re.I),
    ),
    Style(
        name="brackets",
        mark=re.compile(r"^\s*\[(?P<who>system|user|assistant|human|bot|model|ai)\]\s*:?\s*", re.I | re.M),
    ),
    Style(name="inst", mark=re.compile(r"(?:<s>\s*)?(?P<who>\[INST\]|\[/INST\])\s*")),
    Style(
        name="headings",
        mark=re.compile(rf"(?<!#)#{{2,4}}[ \t]*(?P<who>{WHO})[ \t]*\d*[ \t]*(?::[ \t]*\n?|\n)", re.I | re.M),
        single=True,
    ),
    Style(
        name="whatsapp",
        mark=re.compile(
            rf"^[\u200e\u200f]?\[?(?P<time>{TIME})\]?\s*[-–:]?\s*(?P<who>[^:\n]{{1,40}}):\s", re.M
        ),
        timed=True,
    ),
    Style(
        name="tabs",
        mark=re.compile(
            r"^(?:(?P<day>\d{4}[./]\d{1,2}[./]\d{1,2})[^\t\n]*\n)?"
            r"(?P<time>\d{1,2}:\d{2}(?:\s?[AP]M)?)\t(?P<who>[^\t\n]{1,40})\t",
            re.M,
        ),
        timed=True,
    ),
    Style(
        name="irc",
        mark=re.compile(
            r"^\[?(?P<time>(?:[\d./-]{6,10}[ T])?\d{1,2}:\d{2}(?::\d{2})?)\]?\s*<\s*[@+~&%]?(?P<who>[^>\n]{1,30})>\s",
            re.M,
        ),
        timed=True,
    ),
    Style(
        name="telegram",
        mark=re.compile(r"^(?P<who>[^\n,\[]{1,40}), \[(?P<time>[^\]\n]{8,25})\]:?[ \t]*\n?", re.M),
        timed=True,
    ),
    Style(
        name="dated",
        mark=re.compile(rf"^(?P<time>{TIME})[ \t]+(?P<who>[^\s:：\d][^\n:：]{{0,39}}?)[ \t]*:?\n", re.M),
        timed=True,
    ),
    Style(
        name="named",
        mark=re.compile(rf"^(?P<who>[^\s:：][^\n:：]{{0,39}}?)[ \t]+(?P<time>{TIME})[ \t]*\n", re.M),
        timed=True,
    ),
    Style(
        name="zoom",
        mark=re.compile(
            r"^(?P<time>\d{1,2}:\d{2}:\d{2})\s+(?:From\s+)?(?P<who>[^\n:]{1,40}?)\s+to\s+[^:\n]{1,40}:[ \t]*\n?[ \t]*",
            re.M | re.I,
        ),
        timed=True,
    ),
    Style(
        name="stamps",
        mark=re.compile(
            r"^\[(?P<time>(?:[\d./-]{6,10},?[ T])?\d{1,2}:\d{2}(?::\d{2})?(?:\s?[AP]M)?)\][ \t]*"
            r"(?P<who>[^\n:]{1,40}?):?[ \t]*\n",
            re.M | re.I,
        ),
        timed=True,
    ),
    Style(
        name="discord", mark=re.compile(r"^(?P<who>\S.{0,30}?) — (?P<time>[^\n]{5,30})\n", re.M), timed=True
    ),
    Style(
        name="words",
        mark=re.compile(
            rf"^\s*{CLOCK}[\[<*]{{0,3}}(?P<who>{WHO})\s*\d*[\]>*]{{0,3}}\s*(?:[:：]|(?<=\b[QAqa])[.)](?=\s))"
            r"[\]>*]{0,3}[ \t]*",
            re.I | re.M,
        ),
        single=True,
    ),
    Style(name="ends", mark=re.compile(r"\s*(?P<who>__eou__|<eou>|\[eou\]|<utt>)\s*(?:__eot__\s*)?", re.I)),
    Style(
        name="names",
        mark=re.compile(rf"^[ \t]*{CLOCK}[*]{{0,2}}(?P<who>{NAME})[*]{{0,2}}[:：][*]{{0,2}}[ \t]+", re.M),
    ),
    Style(
        name="questions",
        mark=re.compile(
            r"^(?:#{1,6}[ \t]+|[*]{2}|\d{1,3}[.)][ \t]+)*(?![\[(]?\d{1,2}[:.]\d{2})(?![^\n:]{1,30}:[ \t])"
            r"(?P<who>[^\s#*][^\n]{2,200}[?？])(?:[*]{2})?[ \t]*$",
            re.M,
        ),
        single=True,
    ),
)
"""The first that fits is taken: those whose marks stand for nothing else come first."""

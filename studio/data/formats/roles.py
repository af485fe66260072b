"""How files spell the roles of turns."""

from __future__ import annotations

from collections.abc import Mapping

from studio.data.conversation import Role

SPELLINGS: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "系统": "system",
    "available_tools": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "person": "user",
    "customer": "user",
    **dict.fromkeys(
        "usuario usuária usuário usuari utente utilisateur utilisatrice benutzer nutzer gebruiker användare bruger "
        "bruker käyttäjä użytkownik uživatel felhasználó utilizator пользователь користувач pengguna "
        "उपयोगकर्ता المستخدم مستخدم 用户 人类 使用者 ユーザー 사용자".split(),
        "user",
    ),
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "gpt4": "assistant",
    "gpt-4": "assistant",
    "gpt-3.5": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "claude": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "agent": "assistant",
    "moss": "assistant",
    "llm": "assistant",
    "ai_assistant": "assistant",
    **dict.fromkeys(
        "asistente assistente assistent assistentin asystent asistent asszisztens asistan ассистент помощник асистент "
        "asisten सहायक المساعد مساعد 助手 助理 アシスタント 어시스턴트".split(),
        "assistant",
    ),
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "ipython": "tool",
    "tool_response": "tool",
    "tool_result": "tool",
    "function_response": "tool",
    "工具": "tool",
    "function_call": "assistant",
    "functionresponse": "tool",
    "tool_call": "assistant",
    "tool_calls": "assistant",
}
"""Spelling in lower case -> role."""
CALLERS = frozenset({"function_call", "tool_call", "tool_calls"})
"""Spellings of turns whose words are calls, written as JSON."""


def read_role(spelling: object) -> Role | None:
    """Return the role that `spelling` stands for; None when it is not known."""
    return SPELLINGS.get(str(spelling).strip().lower())

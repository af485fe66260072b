"""The names that columns go by for each role, in English first, then as people write them in other languages.

All names are as `format.simplify` makes them: lower case, underscores for blanks and hyphens. The first name of a
role is its exact one.
"""

from __future__ import annotations

Names = tuple[str, ...]

LISTS: Names = (
    "messages",
    "conversations",
    "conversation",
    "dialog",
    "dialogue",
    "dialogs",
    "dialogues",
    "chat",
    "turns",
    "对话",
    "会话",
    "消息",
    "對話",
    "會話",
    "訊息",
)
"""Columns that hold lists of turns."""
INSTRUCTION: Names = (
    "instruction",
    "instructions",
    "instruct",
    "definition",
    "task_definition",
    "task_description",
    "指令",
    "指示",
    "任务",
    "任務",
    "anweisung",
    "instrucción",
    "instruccion",
    "istruzione",
    "instrução",
    "instrucao",
    "инструкция",
    "지시",
    *"instruksi arahan talimat yönerge instrukcja instructie opdracht instrukce instruktion instruksjon ohje "
    "instrucțiune utasítás οδηγία інструкція التعليمات تعليمات دستور निर्देश คำสั่ง".split(),
)
INPUT: Names = (
    "input",
    "context",
    "inputs",
    "输入",
    "上下文",
    "輸入",
    "入力",
    "eingabe",
    "kontext",
    "entrada",
    "entrée",
    "contexto",
    "contexte",
    "ввод",
    "입력",
    *"masukan konteks girdi bağlam wejście kontekst invoer vstup indata inndata syöte konteksti kontext sammanhang "
    "bemenet intrare είσοδος введення ngữ_cảnh 文脈 문맥 контекст "
    "المدخل السياق ورودی इनपुट संदर्भ".split(),
)
ANSWERS: Names = (
    "response",
    "answer",
    "output",
    "completion",
    "responses",
    "answers",
    "outputs",
    "reply",
    "输出",
    "回答",
    "答案",
    "回复",
    "答复",
    "輸出",
    "回覆",
    "出力",
    "antwort",
    "ausgabe",
    "respuesta",
    "salida",
    "réponse",
    "reponse",
    "sortie",
    "risposta",
    "resposta",
    "saída",
    "ответ",
    "вывод",
    "답변",
    "출력",
    *"jawaban keluaran cevap yanıt çıktı odpowiedź wyjście antwoord uitvoer odpověď výstup svar utdata vastaus "
    "válasz kimenet răspuns απάντηση відповідь الإجابة إجابة الجواب جواب الرد پاسخ תשובה उत्तर जवाब উত্তর คำตอบ".split(),
    "câu_trả_lời",
    "trả_lời",
)
"""Columns that hold what the model is to say."""
QUESTIONS: Names = (
    "question",
    "query",
    "problem",
    "questions",
    "user_prompt",
    "qtext",
    "stem",
    "问题",
    "提问",
    "提示",
    "提示词",
    "問題",
    "提問",
    "提示詞",
    "質問",
    "frage",
    "pregunta",
    "domanda",
    "pergunta",
    "вопрос",
    "질문",
    *"pertanyaan soalan soru pytanie vraag otázka fråga spørgsmål spørsmål kysymys kérdés întrebare ερώτηση "
    "питання السؤال سؤال پرسش שאלה प्रश्न सवाल প্রশ্ন คำถาม".split(),
    "câu_hỏi",
)
"""Columns that hold what the person says."""
SYSTEM: Names = (
    "system",
    "system_prompt",
    "system_message",
    "系统",
    "系统提示",
    "系统提示词",
    "系統",
    "系統提示",
    "システム",
    "systemprompt",
)
TOOLS: Names = ("tools", "functions", "available_tools", "tool_definitions", "工具")
REASONING: Names = (
    "reasoning",
    "thinking",
    "reasoning_content",
    "thought",
    "thoughts",
    "chain_of_thought",
    "cot",
    "reasoning_trace",
    "思考",
    "思考过程",
    "推理",
    "推理过程",
    "思维链",
    "思维过程",
    "推理链",
    "思考過程",
)
"""Columns that hold what an answer thought before it spoke."""
TEXT: Names = (
    "text",
    "content",
    "document",
    "body",
    "文本",
    "内容",
    "正文",
    "內容",
    "texto",
    "texte",
    "testo",
    "текст",
)
_SIDES = ("response", "answer", "output", "completion", "text", "message", "messages", "reply", "summary", "content",
          "conversation", "conversations", "dialogue", "dialog", "trajectory", "turns", "solution", "code",
          "translation")  # fmt: skip


def _combine(words: Names) -> Names:
    """Return `words` alone, before and behind each word for an answer: `rejected`, `rejected_text`, `text_rejected`."""
    behind = (f"{word}_{side}" for word in words for side in _SIDES)
    before = (f"{side}_{word}" for word in words for side in _SIDES)
    return (*words, *behind, *before)


CHOSEN: Names = (
    *_combine(
        ("chosen", "preferred", "accepted", "winning", "win", "winner", "better", "selected", "upvoted")
    ),
    *(f"{word}_{side}" for word in ("safe", "safer") for side in _SIDES),
    "response_j",
    "优选",
    "采纳",
    "选中",
)
REJECTED: Names = (
    *_combine(("rejected", "dispreferred", "non_preferred", "nonpreferred", "unpreferred", "losing", "lose", "loser",
               "worse", "reject", "downvoted", "unchosen", "not_chosen")),
    *(f"unsafe_{side}" for side in _SIDES),
    "response_k",
    "拒绝",
    "劣选",
    "落选",
)  # fmt: skip
LABEL: Names = (
    "label",
    "kto_tag",
    "thumbs",
    "thumbs_up",
    "liked",
    "is_good",
    "desirable",
    "is_desirable",
    "feedback",
    "vote",
    "标签",
)
EXPECTED: Names = (
    "answer",
    "ground_truth",
    "gt",
    "solution",
    "reference_answer",
    "expected_answer",
    "expected",
    "gold_answer",
    "gold",
    "final_answer",
    "reference",
    "target",
    "reward_model",
    "标准答案",
    "答案",
)
"""Columns that hold what an answer is checked against."""
IMAGES: Names = (
    "images",
    "image",
    "img",
    "imgs",
    "picture",
    "pictures",
    "photo",
    "image_path",
    "file_name",
    "filename",
    "image_file",
    "image_filename",
    "img_path",
    "image_name",
    "图片",
    "图像",
    "图",
)
CAPTIONS: Names = ("caption", "description", "captions", "描述", "图片描述", "说明")
MATERIAL: Names = tuple(
    (
        "context contexts passage passages article articles document documents background paragraph paragraphs "
        "story table tables schema db_schema database_schema sql_context create_table fact facts evidence "
        "evidences knowledge abstract persona personas personality hint hints support premise hypothesis "
        "transcript snippet snippets excerpt case scenario situation email report review note notes material "
        "retrieved_documents retrieved_contexts search_results references_text history chat_history "
        "conversation_history dialogue_history code buggy_code code_snippet input inputs "
        "selftext question_body question_detail question_details 上下文 材料 文章 背景 "
        "背景知识 参考资料 资料 原文 段落 表格 文脈 本文 kontext absatz artikel hintergrund contexto pasaje "
        "artículo contexte passage_texte contesto контекст "
    ).split()
)
"""Columns that hold what is to be read before a question is answered."""
SOURCES: Names = tuple(
    (
        "text document article content body passage dialogue dialog conversation transcript email email_body "
        "review paragraph story abstract description docstring concepts triples tripleset meaning_representation "
        "mr source src sentence utterance q ques request ask task issue ticket title subject ctx goal premise "
        "hypothesis context code diff front vorderseite 原文 正文 文本 内容 "
    ).split()
)
"""Columns that are the prompt where there is no question: what is summed up, translated, rewritten, carried out."""
PRODUCTS: Names = tuple(
    (
        "summary summaries highlights tldr tl;dr sql sql_query query code python_code python program translation "
        "sparql cypher amr logical_form "
        "corrected correction simplified simplification paraphrase rewrite rewritten headline human_reference "
        "ref lex references target tgt a ans resp generation generated label_text resolution commit_message "
        "摘要 总结 译文 翻译 标题 back rückseite zusammenfassung kurzfassung resumen résumé "
    ).split()
)
"""Columns that are the answer where none is called so."""
CHOICES: Names = tuple(
    (
        "choices options option choice answer_choices answer_options endings candidates alternatives 选项 選項 "
        "optionen opciones opzioni "
    ).split()
)
"""Columns that hold what an answer is chosen from."""
HISTORY: Names = (
    "history",
    "chat_history",
    "conversation_history",
    "dialogue_history",
    "previous_turns",
    "past_turns",
    "历史",
)
"""Columns that hold the turns before a question."""

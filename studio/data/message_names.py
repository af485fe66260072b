"""The names that columns of messages go by: who speaks, what is said, in which talk, and when."""

from __future__ import annotations

SPEAKER = ("role", "inbound", "is_inbound", "sender_type", "author_type", "author_role", "speaker_role", "speaker",
           "author", "sender", "from", "author_id", "user", "username", "user_name", "sender_name", "speaker_id", "spk",
           "speaker_idx", "speaker_name", "participant", "participant_id", "who", "party", "name", "character",
           "agent", "from_user", "creator", "poster", "contributor",
           "userid", "user_id", "message_from", "actor", "sprecher", "absender", "autor",
           "说话人", "发言人", "发送者", "角色")  # fmt: skip
WORDS = ("text", "message", "content", "utterance", "body", "msg", "message_text", "turn_text", "sentence", "line",
         "dialogue_text", "comment", "post", "transcript", "nachricht", "mensaje", "内容", "消息", "文本",
         "mes", "utt")  # fmt: skip
GROUP = ("conversation_id", "dialogue_id", "dialog_id", "thread_id", "conv_id", "session_id", "chat_id", "ticket_id",
         "message_tree_id", "conversationid", "dialogueid", "dialogid", "threadid", "sessionid", "convid", "chatid",
         "topic_id", "case_id", "call_id", "thread", "conversation", "dialogue", "dialog", "ticket", "session",
         "issue_id", "episode_id", "episode", "conversation_no", "conv", "thread_ts", "tree_id", "scene_id", "chat",
         "room", "channel_id", "topicid", "gespräch_id", "对话id", "会话id", "对话编号")  # fmt: skip
PEOPLE = ("userid", "user_id", "customer_id", "contact_id", "visitor_id", "phone", "phone_number", "email")
ORDER = ("turn", "turn_id", "turn_idx", "turn_index", "turn_number", "turn_no", "utterance_idx",
         "utterance_id", "seq", "post_number", "sequence", "position", "order", "index", "idx",
         "message_index", "message_no", "step", "timestamp", "time", "created_at", "created", "date",
         "datetime", "sent_at", "created_utc", "ts", "zeit", "datum", "时间", "轮次")  # fmt: skip
ONE_SIDED = ("is_user", "is_bot", "is_human", "is_customer", "is_me", "from_me", "is_assistant", "is_agent", "fromme",
             "isuser", "isbot", "is_sender", "issender", "is_self", "is_outgoing", "outgoing", "sent_by_me",
             "is_mine")  # fmt: skip
"""Flags that tell two speakers apart, in a file that is one talk."""
HELPING = ("bot", "me", "assistant", "agent", "sender", "issender", "self", "outgoing", "mine")
"""Words in the names of flags that are true for the one who answers."""
KINDS = ("message_type", "msg_type", "type", "direction", "message_direction")

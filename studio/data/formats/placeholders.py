"""What the export of a messenger writes in place of a picture, a voice message, a sticker, a file or a call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

CHARACTERS = 80
"""A longer message in brackets says something."""
TEXT_CHARACTERS = 100_000
"""So much of a text is looked through for them."""
MEDIA = (
    "image images img photo photos picture pictures pic video videos gif gifs audio voice sticker stickers document "
    "documents file files media attachment attachments attached location contact emoji animation bild bilder foto "
    "fotos medien datei sprachnachricht imagen vídeo documento archivo arquivo mídia multimedia fichier média vocal "
    "immagine allegato изображение фото видео файл стикер голосовое медиа 图片 照片 视频 语音 表情 动画表情 表情包 "
    "文件 位置 链接 红包 转账 名片 通话 聊天记录 小程序 语音通话 视频通话 图像 圖片 影片 語音 貼圖 檔案 "
    "스티커 사진 동영상 이모티콘 파일 画像 写真 動画 スタンプ ファイル"
).split()
LEFT_OUT = (
    "omitted omitido omitida omis omise weggelassen ausgeschlossen пропущено oculto oculta esclusi".split()
)
WORD = "|".join(sorted(map(re.escape, MEDIA), key=len, reverse=True))
PLACEHOLDER = re.compile(
    rf"[\u200e\u200f\u202a\u202c\s]*(?:"
    rf"[\[<【]\s*(?:\w+[ :])?(?:{WORD})(?!\w)[^\]>】\n]{{0,40}}[\]>】]"
    rf"|(?:{WORD})(?: \w+)? (?:{'|'.join(LEFT_OUT)})"
    rf"|(?:missed )?(?:voice|video) call(?: \([^)\n]{{1,20}}\))?"
    rf"|[\w-]+\.\w{{2,5}} \((?:file|datei|archivo|fichier|файл)[^)\n]{{1,30}}\)"
    rf"|<(?:msg|\?xml)\b.*"
    rf")[\s.]*",
    re.I | re.S,
)


def is_placeholder(words: object) -> bool:
    """Return whether a message is only the mark of something that is not there: `[图片]`, `<Media omitted>`."""
    if not isinstance(words, str):
        return False
    marked = words.lstrip().startswith(("<msg", "<?xml"))
    return (marked or len(words) <= CHARACTERS) and PLACEHOLDER.fullmatch(words) is not None


def count_placeholders(rows: Sequence[Mapping[str, object]]) -> int:
    """Return how many messages of some rows are such marks: cells, lines of a text, turns."""
    return sum(_count(cell) for row in rows for cell in row.values())


def _count(cell: object, levels: int = 3) -> int:
    if isinstance(cell, str):
        return sum(is_placeholder(line.rpartition(": ")[2]) for line in cell[:TEXT_CHARACTERS].splitlines())
    if not levels or not isinstance(cell, (list, tuple, Mapping)):
        return 0
    parts = cell.values() if isinstance(cell, Mapping) else cell
    return sum(_count(one, levels - 1) for one in parts)

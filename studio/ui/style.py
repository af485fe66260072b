"""The look: a Gradio theme on the system's own fonts; assets/style.css does the rest."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

ASSETS = Path(__file__).resolve().parents[2] / "assets"
ICON = ASSETS / "icons" / "studio.svg"
UPLOT = ASSETS / "uplot"
"""The library that draws the charts (uPlot, MIT), as its package has it."""
FONTS = ("system-ui", "Segoe UI", "Noto Sans CJK SC", "Microsoft YaHei", "PingFang SC", "sans-serif")
MONOSPACE = (
    "ui-monospace",
    "Cascadia Mono",
    "Consolas",
    "DejaVu Sans Mono",
    "Noto Sans Mono CJK SC",
    "monospace",
)
TEAL = gr.themes.Color(
    c50="#eefaf7",
    c100="#d3f2ea",
    c200="#a8e4d7",
    c300="#74cfbf",
    c400="#3fb3a2",
    c500="#17968a",
    c600="#0b7a6f",
    c700="#0b625b",
    c800="#0d4f4a",
    c900="#0e413e",
    c950="#04262a",
)
# The palette's four roles, light and dark: page, card, line, words.
ROLES = {
    "body_background_fill": ("#f5f7f8", "#10161c"),
    "body_text_color": ("#1d2733", "#e4eaf0"),
    "body_text_color_subdued": ("#5d6b7a", "#8fa0b1"),
    "background_fill_primary": ("#ffffff", "#171f27"),
    "background_fill_secondary": ("#f5f7f8", "#10161c"),
    "block_background_fill": ("#ffffff", "#171f27"),
    "block_border_color": ("#dfe5ea", "#26313c"),
    "border_color_primary": ("#dfe5ea", "#26313c"),
    "block_label_text_color": ("#3b4754", "#b7c3cf"),
    "block_title_text_color": ("#1d2733", "#e4eaf0"),
    "block_info_text_color": ("#5d6b7a", "#8fa0b1"),
    "input_background_fill": ("#ffffff", "#121920"),
    "input_border_color": ("#cfd7de", "#33404d"),
    "input_border_color_focus": ("#0b7a6f", "#3cc4b3"),
    "button_primary_background_fill": ("#0b7a6f", "#0b7a6f"),
    "button_primary_background_fill_hover": ("#0b625b", "#0d6a61"),
    "button_primary_text_color": ("#ffffff", "#ffffff"),
    "button_secondary_background_fill": ("#ffffff", "#1d2731"),
    "button_secondary_background_fill_hover": ("#eef2f4", "#26313c"),
    "button_secondary_border_color": ("#cfd7de", "#33404d"),
    "button_secondary_text_color": ("#1d2733", "#e4eaf0"),
    "checkbox_background_color_selected": ("#0b7a6f", "#17968a"),
    "checkbox_border_color_selected": ("#0b7a6f", "#17968a"),
    "checkbox_background_color": ("#ffffff", "#121920"),
    "checkbox_border_color": ("#cfd7de", "#4a5a69"),
    "table_even_background_fill": ("#ffffff", "#171f27"),
    "table_odd_background_fill": ("#f8fafb", "#1b242d"),
    "table_border_color": ("#dfe5ea", "#26313c"),
    "panel_background_fill": ("#ffffff", "#171f27"),
}


def style_sheets() -> list[Path]:
    """Return uPlot's sheet, that of the whole window, then that of each screen, which lies beside the screen's code."""
    own = Path(__file__).parent.rglob("style.css")
    return [UPLOT / "uPlot.min.css", ASSETS / "style.css", *sorted(own, key=lambda sheet: sheet.parent.name)]


def make_theme() -> gr.themes.Base:
    """Return the theme; no font and no file comes from elsewhere."""
    theme = gr.themes.Base(
        primary_hue=TEAL,
        neutral_hue="slate",
        radius_size="md",
        spacing_size="md",
        font=FONTS,
        font_mono=MONOSPACE,
    )
    values = {name: light for name, (light, _) in ROLES.items()}
    values |= {f"{name}_dark": dark for name, (_, dark) in ROLES.items()}
    values |= {
        "block_border_width": "0px",
        "block_shadow": "none",
        "block_padding": "0px",
        "layout_gap": "16px",
    }
    values |= {"block_border_width_dark": "0px", "block_shadow_dark": "none", "input_border_width": "1px"}
    values |= {
        "block_title_text_weight": "600",
        "block_title_text_size": "*text_sm",
        "block_info_text_size": "12px",
    }
    return theme.set(**values)

"""Gradio as this window needs it: everything that knows what Gradio does not promise."""

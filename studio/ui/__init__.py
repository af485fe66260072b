"""The window: the only floor that imports gradio; it talks to the desk and to nothing below it but the core."""

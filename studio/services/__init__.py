"""The counter between screen and engine: commands in, events out."""

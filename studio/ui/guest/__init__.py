"""The window of guests: runs to look at, a model to talk to."""

"""The Training tab: check, start, and the run on show, with its charts."""

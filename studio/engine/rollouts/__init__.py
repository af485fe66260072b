"""Answers that a model in training draws itself: drawn, scored, and made into the examples of its steps."""

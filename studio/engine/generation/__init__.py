"""Answers: requests in, tokens out, by the studio's own decoder over pages of keys and values."""

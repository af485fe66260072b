"""Data sets: from a file that a person brings to token ids and a loss mask, with every row accounted for."""

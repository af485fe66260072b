"""Talks in other forms than lists of turns with a role and words: how they are found in a row and become such lists."""

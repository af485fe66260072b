"""The card beside the four tabs of a run."""

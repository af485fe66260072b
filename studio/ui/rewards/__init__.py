"""Rewards in the window: chosen, written, tried before training; what a run's answers got."""

"""Sharing: the banner above all tabs, the card in Settings."""

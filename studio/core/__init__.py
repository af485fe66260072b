"""The words that every floor speaks: frozen dataclasses of the standard library only."""

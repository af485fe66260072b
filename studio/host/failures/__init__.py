"""The catalogue of known failures: one file a group, each an explicit tuple; `diagnose` finds the entry of an error."""

from studio.host.failures.catalogue import CATALOGUE, diagnose, explain

__all__ = ["CATALOGUE", "diagnose", "explain"]

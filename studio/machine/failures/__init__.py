"""The catalogue of known failures: one file a group, each an explicit tuple; `diagnose` finds the entry of an error."""

from studio.machine.failures.diagnosis import (
    CATALOGUE,
    Found,
    code_of,
    diagnose,
    find_failures,
    refuse_system,
    weigh_text,
)

__all__ = ["CATALOGUE", "Found", "code_of", "diagnose", "find_failures", "refuse_system", "weigh_text"]

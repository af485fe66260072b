"""The Export tab: what a run is written as, and what was written."""

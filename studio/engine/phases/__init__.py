"""The phases of a run, one file each: a function of the run's context (studio/engine/run_context.py)."""

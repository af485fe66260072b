"""Known failures, one file a group, each an explicit tuple `FAILURES`; diagnosis.py puts them in order."""

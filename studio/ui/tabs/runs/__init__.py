"""The Runs tab: the queue, the table of all runs, runs side by side."""

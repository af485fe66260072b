"""Code that the studio did not write, run in processes of its own: a guard against hanging and crashing, no sandbox."""

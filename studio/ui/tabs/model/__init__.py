"""The Model tab: which model is trained, whether it fits, how it is loaded."""

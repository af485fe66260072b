"""The Home tab: this machine, three ways to start, what runs and what ran last."""

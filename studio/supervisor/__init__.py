"""The parent process: it starts the studio, watches it, starts it again, and owns its helpers. Never loads torch."""

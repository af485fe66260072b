"""The command line: one file a command, what they are told with, and how they answer."""

"""What runs before .venv exists: standard library only, and parses on Python 3.8."""

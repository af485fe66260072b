"""`python -m studio.cli`: what launch.py hands over to."""

from studio.cli.main import main

if __name__ == "__main__":  # a process that is started from this one reads the file, too
    raise SystemExit(main())

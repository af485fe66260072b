"""The studio's own code that runs in children: patterns that may never end, and tests of code that a model wrote."""

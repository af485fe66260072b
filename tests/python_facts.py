"""What a Python that the studio can be installed on says of itself when the installer asks it."""

PYTHON_FACTS = {
    "path": "python",
    "version": [3, 12, 4],
    "bits": 64,
    "gil": True,
    "venv": True,
    "conda": False,
    "store": False,
}

"""One training run, from a recipe to a verified artefact; knows nothing of screens."""

"""Recipes of other fine-tuning tools: their configs, commands and scripts, read and never run."""

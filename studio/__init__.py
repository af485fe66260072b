"""Finetune Studio: fine-tune language models on your own machine."""

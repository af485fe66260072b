"""GGUF files, as Ollama, LM Studio and llama.cpp keep models: read, and opened as a folder that trains."""

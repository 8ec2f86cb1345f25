"""Surgery: plans whose sources are GGUF files."""

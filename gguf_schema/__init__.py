"""What a GGUF file of each architecture holds: pure data and pure functions, without torch."""

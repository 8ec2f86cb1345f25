"""Everything that produces a GGUF: read a checkpoint, plan, write."""

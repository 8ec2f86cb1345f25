"""The models: one architecture per module, each with its trunk and its heads."""

"""Runs models: the reference runtime and adapters to real engines."""

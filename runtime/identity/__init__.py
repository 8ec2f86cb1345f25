"""Proves that drafting does not change what an engine says, and names the cause when it does."""

"""Findings about the contents of a file, a plan or a pair."""

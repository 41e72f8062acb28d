"""Comparisons with the programs that the authors released."""

"""Evaluation: protocols, scores with signatures, tables and comparison of systems."""

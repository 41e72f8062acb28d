"""Evaluation protocols, one file each; every score has a signature."""

"""Evaluation protocols, one file each; every score carries a signature."""

"""Fingerprints, which identify a system in signatures."""

import hashlib

DIGITS = 12


def short_hash(*parts: str) -> str:
    """Hash texts to twelve hexadecimal digits, the form of a model folder's fingerprint."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:DIGITS]

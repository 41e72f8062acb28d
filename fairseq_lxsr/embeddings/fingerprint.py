"""Fingerprints: what stands for a system in signatures."""

import hashlib

DIGITS = 12


def short_hash(*parts: str) -> str:
    """Twelve hexadecimal digits, as the fingerprint of a model folder."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:DIGITS]

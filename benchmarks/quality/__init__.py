"""How good the vectors are."""

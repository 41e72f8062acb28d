"""Whether it is what the authors released."""

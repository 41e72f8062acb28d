"""Archives of text and of models: downloads with resume and checks, and safe unpacking."""

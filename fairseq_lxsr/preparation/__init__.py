"""Corpus preparation: from raw text to what fairseq-train reads. Every stage is a folder, made once
and kept.
"""

"""Embeddings without parallel text: mining of similar sentences, and the rounds that train on
them.
"""

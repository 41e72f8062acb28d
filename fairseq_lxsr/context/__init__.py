"""Training without parallel text: mining similar sentences, and training in rounds."""

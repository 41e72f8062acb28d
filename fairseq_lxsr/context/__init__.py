"""Training without parallel text: mining of similar sentences, and training in rounds."""

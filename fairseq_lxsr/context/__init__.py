"""Training without parallel text: sentence mining, and training in rounds."""

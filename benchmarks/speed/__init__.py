"""How fast, and with how much memory."""

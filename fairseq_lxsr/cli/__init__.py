"""`lxsr VERB`: parse, call, print."""

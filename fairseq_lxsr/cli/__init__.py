"""The subcommands of `lxsr`: each module parses options, calls the library and prints results."""

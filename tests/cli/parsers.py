"""All parsers of the command line, for tests that walk through them."""

import argparse
from collections.abc import Iterator

from fairseq_lxsr.cli.evaluate import ProtocolParser
from fairseq_lxsr.cli.main import VERBS, make_parser


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers below this one that parse options: of verbs, protocols and actions."""
    if isinstance(parser, ProtocolParser):
        # Otherwise, options are added when a command line is parsed.
        parser.add_all_options()
    has_subparsers = False
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            has_subparsers = True
            for subparser in action.choices.values():
                yield from parsers(subparser)
    if not has_subparsers:
        yield parser


def options() -> list[tuple[str, argparse.Action]]:
    """All options and positional arguments, each with the command that it belongs to."""
    actions = {}
    for verb in VERBS:
        for parser in parsers(make_parser(verb)):
            for action in parser._actions:
                actions[parser.prog, action.dest] = action
    return [(program, action) for (program, _), action in actions.items()]

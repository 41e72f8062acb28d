"""All parsers of the command line, for tests that walk through them."""

import argparse
from collections.abc import Iterator

from fairseq_lxsr.cli.evaluate import ProtocolParser
from fairseq_lxsr.cli.main import VERBS, make_parser


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers below this one that parse options: of verbs, protocols and actions."""
    if isinstance(parser, ProtocolParser):
        parser.add_all_options()  # which a user's command line does as it is parsed
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield parser
    for action in below:
        for one in action.choices.values():
            yield from parsers(one)


def options() -> list[tuple[str, argparse.Action]]:
    """All options and positional arguments, with the words that lead to their parser."""
    found = {}
    for verb in VERBS:
        for parser in parsers(make_parser(verb)):
            found |= {(parser.prog, action.dest): action for action in parser._actions}
    return [(program, action) for (program, _), action in found.items()]

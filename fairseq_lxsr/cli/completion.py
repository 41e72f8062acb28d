"""`lxsr --print-completion`: what a shell completes, written by shtab from the parsers of all
verbs.
"""

import argparse
import re

from fairseq_lxsr.machine import require

PLACES = r"FILE|FOLDER|DIR|DATA_BIN|PATH|PREFIX|TEMPLATE|\.jsonl|\.yaml"  # in the metavar of a file or folder


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script by which a shell completes the verbs of a parser, their options, choices
    and names of files.
    """
    require("shtab", "completion", "--print-completion")
    import shtab

    from fairseq_lxsr.recipes import names

    for action in _actions(parser):
        if action.dest == "recipe":
            action.choices = names()
        elif re.search(PLACES, str(action.metavar)):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """List the options of a parser and of those below it."""
    if hasattr(parser, "add_all_options"):  # of a protocol, which otherwise come when it parses
        parser.add_all_options()
    below = [
        action.choices.values()
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    return [
        *parser._actions,
        *(action for some in below for one in some for action in _actions(one)),
    ]

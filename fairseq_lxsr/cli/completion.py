"""`lxsr --print-completion`: shell completion scripts, which shtab generates from the parsers."""

import argparse
import re

from fairseq_lxsr.machine import require

# Matches the metavars of options that expect a file or folder name.
FILE_METAVARS = r"FILE|FOLDER|DIR|DATA_BIN|PATH|PREFIX|TEMPLATE|\.jsonl|\.yaml"


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the shell script that completes `lxsr` command lines.

    The script completes verbs, their options, the choices of options, recipes, and file names.

    Args:
        parser: parser for all verbs with their options.
        shell: bash, zsh or fish.
    """
    require("shtab", "completion", "--print-completion")
    import shtab

    from fairseq_lxsr.recipes import names

    for action in _actions(parser):
        if action.dest == "recipe":
            action.choices = names()
        elif re.search(FILE_METAVARS, str(action.metavar)):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell)


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the options of a parser and of all its subparsers."""
    if hasattr(parser, "add_all_options"):
        # Otherwise the parser of a protocol would add its options only when parsing.
        parser.add_all_options()
    actions = list(parser._actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                actions += _actions(subparser)
    return actions

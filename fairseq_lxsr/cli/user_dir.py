"""`lxsr user-dir`: the folder that `fairseq-train --user-dir "$(lxsr user-dir)"` takes, from wherever it runs."""

import argparse

from fairseq_lxsr.files import PACKAGE


def add_parser(verbs) -> None:
    verbs.add_parser("user-dir", description=__doc__).set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    print(PACKAGE)

"""The `lxsr` command."""

import argparse
import contextlib
import importlib
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from fairseq_lxsr import __version__
from fairseq_lxsr.cli.streams import escaped_streams
from fairseq_lxsr.errors import (
    InputError,
    Terminated,
    discard,
    exit_on_input_error,
    say,
    sigterm_as_interrupt,
)
from fairseq_lxsr.files.write import target_of

SIGNALLED = 128  # plus the number of the signal: exit status of a process that a signal ended
SIGPIPE = getattr(signal, "SIGPIPE", 13)  # Windows has none
QUIET_OPTION = "--quiet"
SHELLS = ("bash", "zsh", "fish")  # whose completions shtab writes
# for each verb: its module, which has `add_parser`, and its help; only the module of the given verb
# is imported, and it imports torch and numpy, which take seconds, when it runs and not when it
# parses
VERBS = {
    "run": ("run", "from aligned text to a model and its scores, in one command"),
    "corpus": ("corpus", "list and get public training text"),
    "prepare": ("prepare", "from raw text to what fairseq-train reads"),
    "train": ("train", "train by a recipe"),
    "user-dir": ("train", "print what fairseq-train --user-dir takes"),
    "recipes": ("train", "list the recipes"),
    "export": ("export", "checkpoint to model folder, and that to other formats"),
    "embed": ("embed", "embed the sentences of files"),
    "eval": ("evaluate", "score an encoder"),
    "compare": ("evaluate", "compare two files of scores"),
    "score": ("score", "score sentence pairs"),
    "mine": ("mine", "find translation pairs in two files"),
    "index": ("search", "make an index of a corpus"),
    "search": ("search", "search an index"),
    "serve": ("serve", "embed and search over HTTP, for OpenAI's clients"),
    "report": ("report", "an HTML page of a run"),
    "verify": ("verify", "check files of ours for damage"),
    "train-context": ("train", "train without parallel text"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb; bad input ends with one line and exit status 2."""
    arguments = list(sys.argv[1:] if arguments is None else map(str, arguments))
    with escaped_streams(), exit_on_input_error("lxsr"), sigterm_as_interrupt():
        try:
            with flushed_output():
                args = parse(arguments)
                with quiet_messages() if args.quiet else contextlib.nullcontext():
                    args.run(args)
        except KeyboardInterrupt as stop:
            terminated = isinstance(stop, Terminated)
            what, number = (
                ("terminated", signal.SIGTERM) if terminated else ("interrupted", signal.SIGINT)
            )
            say(f"lxsr: {what}; outputs have their names only when they are complete")
            sys.exit(SIGNALLED + number)
        except BrokenPipeError:
            sys.exit(SIGNALLED + SIGPIPE)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse a command line; `others` are the options that the verb passes on."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    quiet = (
        QUIET_OPTION in arguments[:end]
    )  # before or after the verb, and one option for all of them
    arguments = [word for word in arguments[:end] if word != QUIET_OPTION] + arguments[end:]
    parser = make_parser(arguments[0] if arguments else "")
    if not arguments:
        parser.print_help()
        sys.exit()
    for word in arguments:
        if word.startswith("--") and word.endswith("=--"):  # argparse turns it into an empty list
            parser.error(f"{word}: expected a value")
    args, others = parser.parse_known_args(arguments)
    if "others" in args:
        args.others = others
    elif others:
        raise InputError(
            f"unrecognized arguments: {' '.join(others)}; see lxsr {arguments[0]} --help"
        )
    args.command_line, args.quiet = arguments, quiet
    for name in ("output", "pairs_output"):
        given = getattr(args, name, None)
        if given and str(given) != "-":
            setattr(args, name, type(given)(target_of(given)))
    return args


@contextlib.contextmanager
def quiet_messages() -> Iterator[None]:
    """Drop what the block says on standard error: progress and notes; the errors that it raises are
    not dropped.
    """
    with open(os.devnull, "w", encoding="utf-8") as nothing, contextlib.redirect_stderr(nothing):
        yield


@contextlib.contextmanager
def flushed_output() -> Iterator[None]:
    """Flush all output at the end of the block; a reader that has closed the pipe is not an
    error.
    """
    if isinstance(exact := getattr(sys.stdout, "exact", sys.stdout), io.TextIOWrapper):
        if exact.isatty() or os.environ.get("PYTHONIOENCODING"):
            exact.reconfigure(errors="backslashreplace")  # for text that the terminal cannot show
        else:  # as files: Windows would write another encoding and other ends of lines
            exact.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    try:
        yield
    finally:
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError as error:
            discard(sys.stdout)
            if not isinstance(error, BrokenPipeError):
                raise OSError(error.errno, error.strerror, "standard output") from None


class Parser(argparse.ArgumentParser):
    """Ends a wrong command line with one line; argparse prints the usage before it, up to twenty
    lines.
    """

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.color = (
            False  # Python 3.14 colours help by control characters, which our streams show as text
        )

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


class Verbs(argparse._SubParsersAction):
    """The verbs, each with its help, whose modules say no more than its description."""

    def add_parser(self, name: str, **options: Any) -> Any:
        return super().add_parser(name, **{"help": VERBS[name][1]} | options)


class Completion(argparse.Action):
    """Prints the script by which a shell completes a command line."""

    def __call__(self, parser, namespace, values, option_string=None):
        from fairseq_lxsr.cli.completion import completion  # imports what the verbs need

        print(completion(make_parser(*VERBS), values))
        parser.exit()


def make_parser(*some: str) -> Parser:
    """Make the parser of some verbs with all their options, or of all verbs without options."""
    parser = Parser(prog="lxsr", description="Cross-lingual sentence embeddings.")
    parser.add_argument("--version", action="version", version=f"fairseq-lxsr {__version__}")
    parser.add_argument(
        QUIET_OPTION, action="store_true", help="only results and errors, no progress; of any verb"
    )
    parser.add_argument(
        "--print-completion",
        action=Completion,
        choices=SHELLS,
        help="print the completion of a shell",
    )
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB", action=Verbs)
    for module in dict.fromkeys(VERBS[verb][0] for verb in some if verb in VERBS):
        importlib.import_module(f"fairseq_lxsr.cli.{module}").add_parser(verbs)
    for name in () if verbs.choices else VERBS:
        verbs.add_parser(name)
    return parser


if __name__ == "__main__":
    main()

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

# Exit status of a process that a signal ended, minus the number of the signal.
SIGNALLED = 128
# Windows has no SIGPIPE.
SIGPIPE = getattr(signal, "SIGPIPE", 13)
QUIET_OPTION = "--quiet"
# The shells for which shtab writes completions.
SHELLS = ("bash", "zsh", "fish")
# The module of each verb, which has `add_parser`, and the help of the verb. Only the module of the
# given verb is imported. It imports torch and numpy, which take seconds, when it runs and not when
# it parses.
VERBS = {
    "run": ("run", "train and evaluate a model on aligned text, in one command"),
    "corpus": ("corpus", "list and download public training text"),
    "prepare": ("prepare", "prepare raw text for fairseq-train"),
    "train": ("train", "train a model by a recipe"),
    "user-dir": ("train", "print the folder for fairseq-train --user-dir"),
    "recipes": ("train", "list the recipes"),
    "export": (
        "export",
        "export a checkpoint as a model folder, and a model folder to other formats",
    ),
    "embed": ("embed", "embed the sentences of files"),
    "eval": ("evaluate", "score an encoder"),
    "compare": ("evaluate", "compare two files of scores"),
    "score": ("score", "score sentence pairs"),
    "mine": ("mine", "find translation pairs in two files"),
    "index": ("search", "build an index of a corpus"),
    "search": ("search", "search an index"),
    "serve": ("serve", "embed and search over HTTP, for clients of the OpenAI API"),
    "report": ("report", "write an HTML report of a run"),
    "verify": ("verify", "check files for damage"),
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
            event = "interrupted"
            number = signal.SIGINT
            if isinstance(stop, Terminated):
                event = "terminated"
                number = signal.SIGTERM
            # An output gets its name when it is complete, so a stop leaves no incomplete one.
            say(f"lxsr: {event}; incomplete outputs were not written")
            sys.exit(SIGNALLED + number)
        except BrokenPipeError:
            # The reader of the output is gone, as after `lxsr ... | head`; it needs no message.
            sys.exit(SIGNALLED + SIGPIPE)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse a command line.

    Options that the verb passes on to another program are `others` of the result.
    """
    arguments, is_quiet = without_quiet(arguments)
    if not arguments:
        make_parser().print_help()
        sys.exit()
    verb = arguments[0]
    parser = make_parser(verb)
    for word in arguments:
        # argparse would read the value as an empty list.
        if word.startswith("--") and word.endswith("=--"):
            parser.error(f"{word}: expected a value")
    args, unknown = parser.parse_known_args(arguments)
    if "others" in args:
        args.others = unknown
    elif unknown:
        raise InputError(f"unrecognized arguments: {' '.join(unknown)}; see lxsr {verb} --help")
    # The records of a training name the command line that started it.
    args.command_line = arguments
    args.quiet = is_quiet
    resolve_outputs(args)
    return args


def resolve_outputs(args: argparse.Namespace) -> None:
    """Replace outputs that are symbolic links by their targets, which are written instead."""
    for name in ("output", "pairs_output"):
        path = getattr(args, name, None)
        if path and str(path) != "-":
            setattr(args, name, type(path)(target_of(path)))


def without_quiet(arguments: list[str]) -> tuple[list[str], bool]:
    """Return a command line without --quiet, and whether it was given, before or after the verb."""
    end = len(arguments)
    if "--" in arguments:
        end = arguments.index("--")
    before = arguments[:end]
    remaining = [word for word in before if word != QUIET_OPTION]
    return remaining + arguments[end:], QUIET_OPTION in before


@contextlib.contextmanager
def quiet_messages() -> Iterator[None]:
    """Drop standard error inside the block: progress and notes, but not the errors it raises."""
    with open(os.devnull, "w", encoding="utf-8") as stream, contextlib.redirect_stderr(stream):
        yield


@contextlib.contextmanager
def flushed_output() -> Iterator[None]:
    """Flush all output at the end of the block; a pipe that its reader has closed is no error."""
    # `sys.stdout` escapes control characters; its encoding is that of the exact stream below it.
    stdout = getattr(sys.stdout, "exact", sys.stdout)
    if isinstance(stdout, io.TextIOWrapper):
        if stdout.isatty() or os.environ.get("PYTHONIOENCODING"):
            # For text that the terminal cannot show.
            stdout.reconfigure(errors="backslashreplace")
        else:
            # Windows would use another encoding and other line ends.
            stdout.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
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
    """Reports a wrong command line in one line; argparse would print up to twenty."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        # Python 3.14 colours help with control characters, which our streams escape.
        self.color = False

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


class Verbs(argparse._SubParsersAction):
    """The verbs; each gets its help from `VERBS`."""

    def add_parser(self, name: str, **options: Any) -> Any:
        return super().add_parser(name, **{"help": VERBS[name][1]} | options)


class Completion(argparse.Action):
    """Prints the completion script of a shell."""

    def __call__(self, parser, namespace, values, option_string=None):
        # Imports what the verbs need.
        from fairseq_lxsr.cli.completion import completion

        print(completion(make_parser(*VERBS), values))
        parser.exit()


def make_parser(*names: str) -> Parser:
    """Create the parser of some verbs with all their options, or of all verbs without options."""
    parser = Parser(prog="lxsr", description="Cross-lingual sentence embeddings.")
    parser.add_argument("--version", action="version", version=f"fairseq-lxsr {__version__}")
    parser.add_argument(
        QUIET_OPTION,
        action="store_true",
        help="print results and errors only, no progress; for all verbs",
    )
    parser.add_argument(
        "--print-completion",
        action=Completion,
        choices=SHELLS,
        help="print the completion script of a shell",
    )
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB", action=Verbs)
    # A module may have several verbs, whose parsers it adds together.
    modules = dict.fromkeys(VERBS[name][0] for name in names if name in VERBS)
    for module in modules:
        importlib.import_module(f"fairseq_lxsr.cli.{module}").add_parser(verbs)
    if not verbs.choices:
        for name in VERBS:
            verbs.add_parser(name)
    return parser


if __name__ == "__main__":
    main()

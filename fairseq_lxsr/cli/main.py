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
    repeated_interrupts,
    say,
    sigterm_as_interrupt,
)
from fairseq_lxsr.files.write import target_of

# If a signal stops a process, its exit status is this number plus the signal number.
SIGNALLED = 128
# Windows does not define SIGPIPE, so its usual number is used there.
SIGPIPE = getattr(signal, "SIGPIPE", 13)
QUIET_OPTION = "--quiet"
# Shells for which shtab can write completion scripts.
SHELLS = ("bash", "zsh", "fish")
# Maps each subcommand to the module that defines it, and to its help text. Only the module of the
# given subcommand is imported. The modules import torch and numpy, which takes seconds, only when
# the subcommand runs, so that parsing and --help are fast.
VERBS = {
    "run": ("run", "train and evaluate a model on aligned text, in one command"),
    "corpus": ("corpus", "list and download public training text"),
    "prepare": ("prepare", "prepare raw text for fairseq-train"),
    "train": ("train", "train a model with a recipe"),
    "user-dir": ("train", "print the folder for fairseq-train --user-dir"),
    "recipes": ("train", "list the recipes"),
    "export": (
        "export",
        "export a checkpoint as a model folder, and a model folder to other formats",
    ),
    "embed": ("embed", "embed the sentences in files"),
    "eval": ("evaluate", "score an encoder"),
    "compare": ("evaluate", "compare two score files"),
    "score": ("score", "score sentence pairs"),
    "mine": ("mine", "find translation pairs in two files"),
    "index": ("search", "build an index of a corpus"),
    "search": ("search", "search an index"),
    "serve": ("serve", "embed and search over HTTP, for clients of the OpenAI API"),
    "report": ("report", "write an HTML report of a run"),
    "train-context": ("train", "train without parallel text"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one subcommand; on bad input, print a one-line error and exit with status 2.

    Args:
        arguments: words of the command line after `lxsr` (default: those of this process).
    """
    arguments = list(sys.argv[1:] if arguments is None else map(str, arguments))
    with escaped_streams(), exit_on_input_error("lxsr"), sigterm_as_interrupt():
        try:
            with repeated_interrupts(), flushed_output():
                args = parse(arguments)
                with quiet_messages() if args.quiet else contextlib.nullcontext():
                    args.run(args)
        except KeyboardInterrupt as stop:
            event = "interrupted"
            number = signal.SIGINT
            if isinstance(stop, Terminated):
                event = "terminated"
                number = signal.SIGTERM
            # Outputs are renamed into place when complete, so stopping leaves no partial files.
            say(f"lxsr: {event}; incomplete outputs were not written")
            sys.exit(SIGNALLED + number)
        except BrokenPipeError:
            # The program that reads the output has ended, as in `lxsr ... | head`. This is not an
            # error, so no message is printed.
            sys.exit(SIGNALLED + SIGPIPE)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse a command line.

    Options that the subcommand passes on to another program are stored in `others`.
    """
    arguments, is_quiet = without_quiet(arguments)
    if not arguments:
        make_parser().print_help()
        sys.exit()
    verb = arguments[0]
    parser = make_parser(verb)
    for word in arguments:
        # argparse would convert the value `--` to an empty list.
        if word.startswith("--") and word.endswith("=--"):
            parser.error(f"{word}: expected a value")
    args, unknown = parser.parse_known_args(arguments)
    if "others" in args:
        args.others = unknown
    elif unknown:
        raise InputError(f"unrecognized arguments: {' '.join(unknown)}; see lxsr {verb} --help")
    # Training records include the command line that started the training.
    args.command_line = arguments
    args.quiet = is_quiet
    resolve_outputs(args)
    return args


def resolve_outputs(args: argparse.Namespace) -> None:
    """Replace output paths that are symbolic links with the paths of their targets."""
    for name in ("output", "pairs_output"):
        path = getattr(args, name, None)
        if path and str(path) != "-":
            setattr(args, name, type(path)(target_of(path)))


def without_quiet(arguments: list[str]) -> tuple[list[str], bool]:
    """Return the arguments without --quiet, and whether it was given.

    It may be before or after the subcommand. Arguments after `--` are not changed.
    """
    end = len(arguments)
    if "--" in arguments:
        end = arguments.index("--")
    before = arguments[:end]
    remaining = [word for word in before if word != QUIET_OPTION]
    return remaining + arguments[end:], QUIET_OPTION in before


@contextlib.contextmanager
def quiet_messages() -> Iterator[None]:
    """Discard progress and notes on standard error inside the block; errors are still raised."""
    with open(os.devnull, "w", encoding="utf-8") as stream, contextlib.redirect_stderr(stream):
        yield


@contextlib.contextmanager
def flushed_output() -> Iterator[None]:
    """Set the encoding of standard output, and flush it at the end of the block.

    If the program that reads the output has ended, the rest of the output is discarded.

    Raises:
        OSError: if standard output cannot be written for another reason.
    """
    # `sys.stdout` may be an `EscapedStream`. The encoding is set on the stream that it writes to.
    stdout = getattr(sys.stdout, "exact", sys.stdout)
    if isinstance(stdout, io.TextIOWrapper):
        if stdout.isatty() or os.environ.get("PYTHONIOENCODING"):
            # Escape characters that the terminal cannot display.
            stdout.reconfigure(errors="backslashreplace")
        else:
            # On Windows, the default encoding and line endings would differ.
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
    """Reports a command-line error in one line; argparse would also print the usage."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        # Python 3.14 colours help with control characters, which our streams escape.
        self.color = False

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Convert a value. An error inside the conversion is not an error of the value.

        argparse reports every TypeError and ValueError as an invalid value, even one that comes
        from an import.
        """
        convert = self._registry_get("type", action.type, action.type)
        try:
            return convert(arg_string)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(action, str(error)) from None

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; see {self.prog} --help\n")


class Verbs(argparse._SubParsersAction):
    """Adds subcommands, with their help texts from `VERBS`."""

    def add_parser(self, name: str, **options: Any) -> Any:
        return super().add_parser(name, **{"help": VERBS[name][1]} | options)


class Completion(argparse.Action):
    """Prints the completion script for a shell."""

    def __call__(self, parser, namespace, values, option_string=None):
        # Imported here, because only this option needs it.
        from fairseq_lxsr.cli.completion import completion

        print(completion(make_parser(*VERBS), values))
        parser.exit()


def make_parser(*names: str) -> Parser:
    """Create the parser of the `lxsr` command.

    Args:
        names: subcommands to add with their options. If none of them exists, all subcommands are
            added without options, which suffices for the help text.
    """
    parser = Parser(prog="lxsr", description="Cross-lingual sentence embeddings.")
    parser.add_argument("--version", action="version", version=f"fairseq-lxsr {__version__}")
    parser.add_argument(
        QUIET_OPTION,
        action="store_true",
        help="print only results and errors, not progress; accepted by all subcommands",
    )
    parser.add_argument(
        "--print-completion",
        action=Completion,
        choices=SHELLS,
        help="print the completion script for a shell",
    )
    verbs = parser.add_subparsers(title="verbs", required=True, metavar="VERB", action=Verbs)
    # A module may define several subcommands and add all their parsers at once.
    modules = dict.fromkeys(VERBS[name][0] for name in names if name in VERBS)
    for module in modules:
        importlib.import_module(f"fairseq_lxsr.cli.{module}").add_parser(verbs)
    if not verbs.choices:
        for name in VERBS:
            verbs.add_parser(name)
    return parser


if __name__ == "__main__":
    main()

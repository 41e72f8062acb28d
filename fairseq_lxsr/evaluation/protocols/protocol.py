"""What every protocol of `lxsr eval` is."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairseq_lxsr.embeddings import Encoder
    from fairseq_lxsr.evaluation.score import Score
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.evaluation.named_sets import datasets
from fairseq_lxsr.options import FILE_NAME, SEARCH_PRECISIONS, TIES, at_least
from fairseq_lxsr.text.languages import split_pairs

if TYPE_CHECKING:
    from fairseq_lxsr.embeddings import Encoder
    from fairseq_lxsr.evaluation.score import Score
    from fairseq_lxsr.search.reranker import Reranker


@dataclass(frozen=True)
class Plan:
    """A protocol with its options checked and its text found.

    Args:
        measure: an encoder to scores, some at a time, as they are measured.
        texts: files that are read.
        outputs: files that are written beside the scores.
    """

    measure: "Callable[[Encoder], Iterable[list[Score]]]"
    texts: Sequence[str | Path] = ()
    outputs: Sequence[str | Path] = ()


class Protocol:
    """One way to score an encoder; sub-classes set `name`, as `lxsr eval NAME`, and `help`, one line.

    A module of a protocol imports numpy, torch and what they bring inside `prepare` and not at its top: the command
    line imports every one of them to show its help.
    """

    name = ""
    help = ""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of this protocol."""
        raise NotImplementedError

    def prepare(self, args: argparse.Namespace) -> Plan:
        """Check the options and find the text, before the encoder is loaded.

        Raises: InputError for options that do not go together and for text that is not there.
        """
        raise NotImplementedError


Files = tuple[str, str, str, str]  # two languages, two paths
MEMORY_MB = 128


def aligned_options(parser: argparse.ArgumentParser, default: str = "") -> None:
    parser.add_argument(
        "--source",
        type=FILE_NAME,
        metavar="FILE",
        help="sentences, one a line, for a single pair" + (f" (default: {default})" if default else ""),
    )
    parser.add_argument("--target", type=FILE_NAME, metavar="FILE", help="their translations, line by line")
    parser.add_argument(
        "--data",
        type=FILE_NAME,
        metavar="TEMPLATE",
        help="instead of --source and --target: {lang} and {pair} are filled in, .txt and .gz added where needed, "
        "or with --dataset the folder of its files",
    )
    parser.add_argument(
        "--dataset", choices=tuple(datasets()), help="a public test set, whose files and languages are known"
    )
    parser.add_argument(
        "--lang-pairs", metavar="PAIRS", help="for example en-fr, with --data also several: en-fr,en-de"
    )


def search_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--precision",
        choices=SEARCH_PRECISIONS,
        default=SEARCH_PRECISIONS[0],
        help="of the search; bfloat16 finds the same, faster where the processor has it (default: float32)",
    )
    parser.add_argument(
        "--memory",
        type=at_least(1),
        default=MEMORY_MB,
        metavar="MB",
        help=f"for the search, beside the embeddings (default: {MEMORY_MB})",
    )


def search_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Options of `nearest_neighbours`."""
    return {"precision": args.precision, "memory_mb": args.memory, "show_progress": True}


def rerank_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rerank",
        type=at_least(1),
        metavar="N",
        help="score the N nearest again by their pieces, of a model without layers or with gated ones (default: no)",
    )


def reranker(encoder: "Encoder", args: argparse.Namespace) -> "Reranker | None":
    """What --rerank asks for."""
    from fairseq_lxsr.search.reranker import Reranker

    return Reranker(encoder, args.rerank) if args.rerank else None


def classifier_options(parser: argparse.ArgumentParser) -> None:
    for name, help_text in (
        ("epochs", "passes over the training set; the best on dev is kept"),
        ("seeds", "classifiers whose scores are averaged"),
    ):
        parser.add_argument(
            f"--{name}", type=at_least(1), metavar="N", help=f"{help_text} (default: as the protocol has it)"
        )
    parser.add_argument(
        "--ties", choices=TIES, help="epoch kept of those that are best on dev; LASER's code: last (default: first)"
    )


def with_options(config, args: argparse.Namespace):
    """The preset with what the user set."""
    chosen = {name: getattr(args, name) for name in ("epochs", "seeds", "ties") if getattr(args, name) is not None}
    return replace(config, **chosen)


def comma_separated(allowed) -> Callable[[str], list[str]]:
    def parse(value: str) -> list[str]:
        names = value.split(",")
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r}; expected of {', '.join(allowed)}")
        return names

    return parse


def languages(value: str) -> list[str]:
    names = value.split(",")
    if not all(names) or len(set(names)) != len(names):
        raise argparse.ArgumentTypeError(f"{value!r}; expected languages with commas between them, each once")
    return names


def aligned_files(args: argparse.Namespace, both_directions: bool = True) -> list[Files]:
    """The files of every pair that was asked for; `both_directions` as in `language_pairs`."""
    from fairseq_lxsr.evaluation.texts import find_file

    one = args.source and args.target and not args.data
    if args.dataset and (not (args.data and args.lang_pairs) or args.source or args.target):
        raise InputError(
            f"--dataset {args.dataset}: expected --data FOLDER and --lang-pairs, and no --source or --target"
        )
    if not one and (not (args.data and args.lang_pairs) or args.source or args.target):
        raise InputError("expected either --source and --target, or --data and --lang-pairs")
    pairs = language_pairs(args.lang_pairs, both_directions) if args.lang_pairs else [("", "")]
    if one:
        if len(pairs) > 1:
            raise InputError(f"--lang-pairs {args.lang_pairs} for one --source and --target; expected one pair")
        return [(*pairs[0], args.source, args.target)]
    known = datasets()[args.dataset] if args.dataset else None
    found = []
    for pair in pairs:
        source, target = (
            str(known.path(args.data, language) if known else find_file(args.data, language, "-".join(pair)))
            for language in pair
        )
        found.append((*pair, source, target))
    return found


def signed(scores: "list[Score]", args: argparse.Namespace) -> "list[Score]":
    """The scores with the name of the test set in their signatures, where it has one."""
    if not args.dataset:
        return scores
    return [replace(score, settings={"dataset": args.dataset} | score.settings) for score in scores]


def language_pairs(value: str, both_directions: bool = True) -> list[tuple[str, str]]:
    """Pairs with commas between them.

    Args:
        value: for example en-fr,en-de.
        both_directions: both directions of a pair are measured, so that none may be given in both.
    """
    try:
        pairs = split_pairs(value, distinct=False)
    except InputError as error:
        raise InputError(f"--lang-pairs {value}: {error}") from None
    for first, second in pairs if both_directions else ():
        if first != second and (second, first) in pairs:
            word = f"{first}-{second}"
            raise InputError(f"--lang-pairs {value}: {word} stands there twice; both directions are measured anyway")
    return pairs

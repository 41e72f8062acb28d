"""`lxsr corpus`: list public parallel corpora and test sets, and download one of them."""

import argparse
import shlex
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.write import refuse_overlap
from fairseq_lxsr.options import file_path
from fairseq_lxsr.text.languages import best_code, split_pair

if TYPE_CHECKING:
    from fairseq_lxsr.evaluation.named_sets import Dataset
    from fairseq_lxsr.preparation.registry import PublicCorpus

# The registry and the downloads need numpy and tqdm, so they are imported when an action runs.

NAME_HELP = "name of a corpus or test set; see `lxsr corpus list`"


def add_parser(verbs) -> None:
    parser = verbs.add_parser("corpus", description=__doc__)
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list the corpora and test sets")
    listing.add_argument(
        "--lang-pair", metavar="SRC-TGT", help="list only entries with this language pair"
    )
    listing.set_defaults(run=run_list)
    showing = actions.add_parser("show", help="describe one corpus or test set")
    showing.add_argument("name", help=NAME_HELP)
    showing.set_defaults(run=run_show)
    getting = actions.add_parser(
        "get", help="download and unpack a corpus or test set; an interrupted download is resumed"
    )
    getting.add_argument("name", help=NAME_HELP)
    getting.add_argument(
        "--lang-pair",
        metavar="SRC-TGT",
        help="language pair of a corpus; a test set always includes all its languages",
    )
    getting.add_argument(
        "--output",
        type=file_path,
        default=Path("text"),
        metavar="FOLDER",
        help="folder for the text (default: text)",
    )
    getting.set_defaults(run=run_get)


def run_list(args: argparse.Namespace) -> None:
    from fairseq_lxsr.preparation.registry import registry

    corpora = list(registry().values())
    sets = list(test_sets().values())
    if args.lang_pair:
        pair = split_pair(args.lang_pair)
        check_known(*pair)
        corpora = [corpus for corpus in corpora if corpus.has(*pair)]
        sets = [test_set for test_set in sets if has_pair(test_set, *pair)]
    for corpus in corpora:
        languages = "local"
        if corpus.languages:
            languages = f"{len(corpus.languages)} languages"
        if corpus.partner:
            languages += f" with {corpus.partner}"
        print(f"{corpus.name:20} {languages:22} {corpus.format:13} {corpus.about}")
    for test_set in sets:
        languages = f"{len(test_set.codes)} languages"
        print(f"{test_set.name:20} {languages:22} {'test set':13} {test_set.about}")


def has_pair(test_set: "Dataset", source: str, target: str) -> bool:
    return bool(best_code(source, test_set.codes) and best_code(target, test_set.codes))


def check_known(source: str, target: str) -> None:
    """Check that a training corpus has a language pair.

    If only test sets have it, print a message that says so.

    Raises:
        InputError: if neither a corpus nor a test set has the pair.
    """
    from fairseq_lxsr.preparation.registry import registry

    corpora = registry().values()
    if any(corpus.has(source, target) for corpus in corpora):
        return
    codes = sorted(set(chain.from_iterable(corpus.languages for corpus in corpora)))
    unknown = [code for code in (source, target) if not best_code(code, [*codes, "en"])]
    problem = " or ".join(unknown) or "this pair"
    message = (
        f"{source}-{target}: no training corpus has {problem}; the languages are en, "
        f"{', '.join(codes)}"
    )
    if not any(has_pair(test_set, source, target) for test_set in test_sets().values()):
        raise InputError(f"{message}, and the languages of the test sets (see `lxsr corpus show`)")
    print(f"{message}; there are only test sets:")


def test_sets() -> "dict[str, Dataset]":
    """Return the downloadable test sets of `lxsr eval` by name."""
    from fairseq_lxsr.evaluation.named_sets import datasets

    return {name: test_set for name, test_set in datasets().items() if test_set.sha256}


def run_show(args: argparse.Namespace) -> None:
    from fairseq_lxsr.preparation.registry import find_corpus, registry

    test_set = test_sets().get(args.name)
    if test_set:
        description = describe_test_set(test_set)
    else:
        corpus = registry().get(args.name) or find_corpus(args.name, "en", "fr")
        description = describe_corpus(corpus)
    for name, value in description.items():
        print(f"{name:10} {value}")


def describe_corpus(corpus: "PublicCorpus") -> dict[str, str]:
    languages = "any"
    if corpus.languages:
        partner = "any two of them"
        if corpus.partner:
            partner = f"each with {corpus.partner}"
        languages = f"{' '.join(corpus.languages)}, {partner}"
    sizes = ", ".join(f"{pair} {size:,} bytes" for pair, size in corpus.size.items())
    checksums = ", ".join(f"{pair} {value}" for pair, value in corpus.sha256.items())
    return {
        "name": corpus.name,
        "about": corpus.about,
        "languages": languages,
        "format": corpus.format,
        "address": corpus.url or "local",
        "licence": corpus.licence,
        "size": sizes or "not published",
        "SHA-256": checksums or "not published",
    }


def describe_test_set(test_set: "Dataset") -> dict[str, str]:
    return {
        "name": test_set.name,
        "about": test_set.about,
        "languages": " ".join(test_set.codes),
        "sentences": f"{test_set.sentences:,}, the same in each language",
        "address": test_set.url,
        "licence": test_set.licence,
        "size": f"{test_set.size:,} bytes",
        "SHA-256": str(test_set.sha256),
    }


def get_test_set(test_set: "Dataset", args: argparse.Namespace) -> None:
    from fairseq_lxsr.files.download import get_archive

    if args.lang_pair:
        raise InputError(
            f"{test_set.name} does not support --lang-pair, because its archive contains all "
            "languages; omit the option"
        )
    files = {Path(name).name: args.output / name for name in test_set.all_files()}
    archive = args.output / Path(test_set.url).name
    expected = (test_set.size, test_set.sha256)
    get_archive(test_set.url, archive, files, expected)
    print(f"{args.output}: {test_set.name}, {len(files)} languages (licence: {test_set.licence})")
    command = ["lxsr", "eval", "xsim", "--dataset", test_set.name, "--data", str(args.output)]
    print(shlex.join(command), "...")


def run_get(args: argparse.Namespace) -> None:
    from fairseq_lxsr.preparation.registry import find_corpus, get_corpus, registry

    refuse_overlap([args.output], [])
    if args.name in test_sets():
        get_test_set(test_sets()[args.name], args)
        return
    if args.name not in registry():
        raise InputError(f"{args.name!r}: unknown corpus; `lxsr corpus list` prints the names")
    if not args.lang_pair:
        raise InputError(f"{args.name} requires --lang-pair, for example en-fr")
    source, target = split_pair(args.lang_pair)
    corpus = find_corpus(args.name, source, target)
    files = get_corpus(corpus, source, target, args.output)
    # Either one file with pairs, or one file per language with a common prefix.
    data = files[0]
    if len(files) > 1:
        data = data.with_suffix("")
    pair = data.name.removeprefix(f"{corpus.name}.").removesuffix(".tsv")
    print(f"{', '.join(map(str, files))} (licence: {corpus.licence})")
    print(shlex.join(["lxsr", "prepare", "--lang-pairs", pair, "--data", str(data)]))

"""`lxsr corpus`: list public parallel corpora and test sets, and download one of them."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.write import refuse_overlap
from fairseq_lxsr.options import file_path
from fairseq_lxsr.text.languages import best_code, split_pair

if TYPE_CHECKING:
    from fairseq_lxsr.evaluation.named_sets import Dataset
    from fairseq_lxsr.preparation.registry import PublicCorpus

# the registry and the downloads need numpy and tqdm, so they are imported only when a verb runs


def add_parser(verbs) -> None:
    parser = verbs.add_parser("corpus", description=__doc__)
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="the corpora there are")
    listing.add_argument("--lang-pair", metavar="SRC-TGT", help="only those of this pair")
    listing.set_defaults(run=run_list)
    showing = actions.add_parser("show", help="all about one")
    showing.add_argument("name")
    showing.set_defaults(run=run_show)
    getting = actions.add_parser(
        "get", help="download and unpack one; an interrupted download goes on where it was"
    )
    getting.add_argument("name")
    getting.add_argument(
        "--lang-pair", metavar="SRC-TGT", help="of a corpus; a test set comes in all its languages"
    )
    getting.add_argument(
        "--output",
        type=file_path,
        default=Path("text"),
        metavar="FOLDER",
        help="where the text goes (default: text)",
    )
    getting.add_argument(
        "--keep-archive", action="store_true", help="do not remove the archive after unpacking"
    )
    getting.set_defaults(run=run_get)


def run_list(args: argparse.Namespace) -> None:
    from fairseq_lxsr.preparation.registry import registry

    pair = args.lang_pair and split_pair(args.lang_pair)
    if pair:
        check_known(*pair)
    for corpus in registry().values():
        if not pair or corpus.has(*pair):
            languages = f"{len(corpus.languages)} languages" if corpus.languages else "local"
            partner = f" with {corpus.partner}" if corpus.partner else ""
            print(f"{corpus.name:20} {languages + partner:22} {corpus.format:13} {corpus.about}")
    for test_set in test_sets().values():
        if not pair or all(best_code(language, test_set.codes) for language in pair):
            print(
                f"{test_set.name:20} {f'{len(test_set.codes)} languages':22} {'test set':13} {test_set.about}"
            )


def check_known(source: str, target: str) -> None:
    """Check that there is text of a language pair; say which codes there are, and where text is for
    tests alone.
    """
    from fairseq_lxsr.preparation.registry import registry

    if any(corpus.has(source, target) for corpus in registry().values()):
        return
    pair, known = (
        f"{source}-{target}",
        sorted({code for corpus in registry().values() for code in corpus.languages}),
    )
    lacking = [code for code in (source, target) if not best_code(code, [*known, "en"])]
    said = f"{pair}: no corpus to train on has {' or '.join(lacking) or 'this pair'}; there are en, {', '.join(known)}"
    if not any(
        best_code(source, found.codes) and best_code(target, found.codes)
        for found in test_sets().values()
    ):
        raise InputError(f"{said}, and languages of test sets (`lxsr corpus show`)")
    print(f"{said}; test sets have it:")


def test_sets() -> "dict[str, Dataset]":
    """Return the named test sets of `lxsr eval` that can be downloaded."""
    from fairseq_lxsr.evaluation.named_sets import datasets

    return {name: test_set for name, test_set in datasets().items() if test_set.sha256}


def run_show(args: argparse.Namespace) -> None:
    from fairseq_lxsr.preparation.registry import find_corpus, registry

    test_set = test_sets().get(args.name)
    if test_set:
        described = describe_test_set(test_set)
    else:
        described = describe_corpus(registry().get(args.name) or find_corpus(args.name, "en", "fr"))
    for name, value in described.items():
        print(f"{name:10} {value}")


def describe_corpus(corpus: "PublicCorpus") -> dict[str, str]:
    partner = f", each with {corpus.partner}" if corpus.partner else ", any two of them"
    return {
        "name": corpus.name,
        "about": corpus.about,
        "languages": f"{' '.join(corpus.languages)}{partner}" if corpus.languages else "any",
        "format": corpus.format,
        "address": corpus.url or "local",
        "licence": corpus.licence,
        "size": ", ".join(f"{pair} {size:,} bytes" for pair, size in corpus.size.items())
        or "not published",
        "SHA-256": ", ".join(f"{pair} {value}" for pair, value in corpus.sha256.items())
        or "not published",
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
            f"--lang-pair with {test_set.name}; expected none, its archive holds all languages"
        )
    wanted = {Path(name).name: args.output / name for name in test_set.all_files()}
    expected = test_set.size, test_set.sha256
    get_archive(
        test_set.url, args.output / Path(test_set.url).name, wanted, expected, args.keep_archive
    )
    print(f"{args.output}: {test_set.name}, {len(wanted)} languages (licence: {test_set.licence})")
    print(
        shlex.join(
            ["lxsr", "eval", "xsim", "--dataset", test_set.name, "--data", str(args.output)]
        ),
        "...",
    )


def run_get(args: argparse.Namespace) -> None:
    from fairseq_lxsr.preparation.registry import find_corpus, get_corpus

    refuse_overlap([args.output], [])
    if args.name in test_sets():
        get_test_set(test_sets()[args.name], args)
        return
    if not args.lang_pair:
        raise InputError(f"{args.name} without --lang-pair; expected one, for example en-fr")
    source, target = split_pair(args.lang_pair)
    corpus = find_corpus(args.name, source, target)
    files = get_corpus(corpus, source, target, args.output, args.keep_archive)
    data = files[0] if len(files) == 1 else files[0].with_suffix("")
    pair = (
        (files[0].name if len(files) == 1 else data.name)
        .removeprefix(f"{corpus.name}.")
        .removesuffix(".tsv")
    )
    print(f"{', '.join(map(str, files))} (licence: {corpus.licence})")
    print(shlex.join(["lxsr", "prepare", "--lang-pairs", pair, "--data", str(data)]))

"""`lxsr eval`: score an encoder by one of the field's protocols."""

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, product, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_lxsr.choices import CLASSIFIERS, MARGINS, METRICS, RETRIEVALS, SEARCH_PRECISIONS, XNLI_PRESETS
from fairseq_lxsr.cli.models import add_any_model_options, load_any, model_files
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import atomic_write, read_parallel, refuse_overlap
from fairseq_lxsr.languages import split_pairs
from fairseq_lxsr.ranges import FILE_NAME, at_least

if TYPE_CHECKING:
    from fairseq_lxsr.embeddings import Encoder
    from fairseq_lxsr.evaluation.score import Score

Files = tuple[str, str, str, str]  # two languages, two paths


def add_parser(verbs) -> None:
    parser = verbs.add_parser("eval", description=__doc__)
    protocols = parser.add_subparsers(title="protocols", required=True, metavar="PROTOCOL")
    for name, add_options, run, help_text in (
        ("xsr", xsr_options, run_xsr, "sentence retrieval, P@1, P@5, P@10 both ways"),
        ("xsim", similarity_options, run_similarity, "similarity search by margin, error rate both ways"),
        ("tatoeba", similarity_options, run_similarity, "similarity search by cosine, error rate both ways"),
        ("bucc", bucc_options, run_bucc, "mining of hidden translations, F1"),
        ("mldoc", document_options, run_documents, "document classification across languages"),
        ("titles", document_options, run_documents, "title classification across languages"),
        ("xnli", xnli_options, run_xnli, "natural language inference across languages"),
    ):
        protocol = protocols.add_parser(name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}.")
        add_any_model_options(protocol)
        add_options(protocol)
        protocol.add_argument(
            "--output", type=FILE_NAME, metavar="FILE.jsonl", help="add the scores to this file, one JSON a line"
        )
        protocol.add_argument("--published", action="store_true", help="show scores from papers as well")
        protocol.set_defaults(run=run, protocol=name)


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
        help="instead of --source and --target: {lang} and {pair} in it are filled in, .txt and .gz added where needed",
    )
    parser.add_argument(
        "--lang-pairs", metavar="PAIRS", help="for example en-fr, with --data also several: en-fr,en-de"
    )


def search_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--precision",
        choices=SEARCH_PRECISIONS,
        default="float32",
        help="of the search; bfloat16 finds the same, faster where the processor has it (default: float32)",
    )
    parser.add_argument(
        "--memory",
        type=at_least(1),
        default=128,
        metavar="MB",
        help="for the search, beside the embeddings (default: 128)",
    )


def search_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Options of `nearest_neighbours`."""
    return {"precision": args.precision, "memory_mb": args.memory, "show_progress": True}


def similarity_options(parser: argparse.ArgumentParser) -> None:
    aligned_options(parser)
    search_options(parser)


def xsr_options(parser: argparse.ArgumentParser) -> None:
    similarity_options(parser)
    parser.add_argument(
        "--metric",
        type=comma_separated(METRICS),
        default=list(METRICS),
        metavar="NAMES",
        help=f"of {', '.join(METRICS)}, with commas between them (default: all)",
    )
    parser.add_argument(
        "--seed",
        type=at_least(0),
        default=1,
        metavar="N",
        help="of the shuffle that picks queries and candidates (default: 1)",
    )


def bucc_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        required=True,
        type=FILE_NAME,
        metavar="TEMPLATE",
        help="for example bucc2018/{pair}/{pair}: .training.fr and so on",
    )
    parser.add_argument("--lang-pairs", required=True, metavar="PAIRS", help="for example fr-en,de-en")
    parser.add_argument("--k", type=at_least(1), default=4, metavar="N", help="size of the neighbourhoods (default: 4)")
    parser.add_argument("--margin", choices=MARGINS, default="ratio", help="default: ratio")
    parser.add_argument("--retrieval", choices=RETRIEVALS, default="max", help="default: max")
    parser.add_argument(
        "--pairs-output", type=FILE_NAME, metavar="FILE.tsv", help="write the mined pairs of a single language pair"
    )
    search_options(parser)


def document_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", required=True, type=FILE_NAME, metavar="FOLDER", help="LANG.train, LANG.dev, LANG.test (.tsv, .gz)"
    )
    parser.add_argument("--langs", required=True, type=languages, metavar="LANGS", help="tested, for example en,de,fr")
    parser.add_argument(
        "--train-langs", type=languages, metavar="LANGS", help="learnt in (default: all of --langs; en for en to X)"
    )
    parser.add_argument("--classifier", choices=CLASSIFIERS, default="mlp", help="default: mlp")
    classifier_options(parser)


def xnli_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", required=True, type=FILE_NAME, metavar="FOLDER", help="the published files, or LANG.PART.tsv"
    )
    parser.add_argument("--langs", required=True, type=languages, metavar="LANGS", help="tested, for example en,de,fr")
    parser.add_argument("--train-lang", default="en", metavar="LANG", help="default: en")
    parser.add_argument("--preset", choices=XNLI_PRESETS, default="laser", help="default: laser")
    classifier_options(parser)


def classifier_options(parser: argparse.ArgumentParser) -> None:
    for name, help_text in (
        ("epochs", "passes over the training set; the best on dev is kept"),
        ("seeds", "classifiers whose scores are averaged"),
    ):
        parser.add_argument(
            f"--{name}", type=at_least(1), metavar="N", help=f"{help_text} (default: as the protocol has it)"
        )


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


def aligned_files(args: argparse.Namespace) -> list[Files]:
    """The files of every pair that was asked for."""
    from fairseq_lxsr.evaluation.text import find_file

    one = args.source and args.target and not args.data
    if not one and (not (args.data and args.lang_pairs) or args.source or args.target):
        raise InputError("expected either --source and --target, or --data and --lang-pairs")
    pairs = language_pairs(args.lang_pairs) if args.lang_pairs else [("", "")]
    if one:
        if len(pairs) > 1:
            raise InputError(f"--lang-pairs {args.lang_pairs} for one --source and --target; expected one pair")
        return [(*pairs[0], args.source, args.target)]
    found = []
    for pair in pairs:
        source, target = (str(find_file(args.data, language, "-".join(pair))) for language in pair)
        found.append((*pair, source, target))
    return found


def language_pairs(value: str) -> list[tuple[str, str]]:
    """Pairs with commas between them; both directions of each are measured, so none may stand there twice."""
    try:
        pairs = split_pairs(value, distinct=False)
    except InputError as error:
        raise InputError(f"--lang-pairs {value}: {error}") from None
    for first, second in pairs:
        if first != second and (second, first) in pairs:
            word = f"{first}-{second}"
            raise InputError(f"--lang-pairs {value}: {word} stands there twice; both directions are measured anyway")
    return pairs


def run_xsr(args: argparse.Namespace) -> None:
    from fairseq_lxsr.evaluation import xsr

    files = aligned_files(args)
    encoder = prepared_encoder(args, chain.from_iterable(pair[2:] for pair in files))

    def measured(first: str, second: str, source: str, target: str) -> list["Score"]:
        texts = xsr.select(read_parallel(source, target), args.seed, (first, second), (source, target))
        return xsr.evaluate(texts, encoder, args.metric, **search_settings(args))

    finish(args, starmap(measured, files))


def run_similarity(args: argparse.Namespace) -> None:
    from fairseq_lxsr.evaluation import similarity_search
    from fairseq_lxsr.evaluation.text import read_text

    files = aligned_files(args)
    encoder = prepared_encoder(args, chain.from_iterable(pair[2:] for pair in files))

    def measured(first: str, second: str, source: str, target: str) -> list["Score"]:
        texts = read_text(source, first), read_text(target, second)
        return similarity_search.evaluate(args.protocol, *texts, encoder, **search_settings(args))

    finish(args, starmap(measured, files))


def run_bucc(args: argparse.Namespace) -> None:
    from fairseq_lxsr.evaluation import bucc

    pairs = ["-".join(pair) for pair in language_pairs(args.lang_pairs)]
    if args.pairs_output and len(pairs) > 1:
        raise InputError(f"--pairs-output with {len(pairs)} language pairs; expected one")
    find = partial(bucc.find_files, args.data)
    encoder = prepared_encoder(args, chain.from_iterable(starmap(find, product(pairs, bucc.PARTS))))

    def measured(pair: str) -> list["Score"]:
        train, test = (bucc.read_set(args.data, pair, part) for part in bucc.PARTS)
        score, mined = bucc.evaluate(train, test, encoder, args.k, args.margin, args.retrieval, **search_settings(args))
        if args.pairs_output:
            with atomic_write(args.pairs_output) as stream:
                for row in zip(mined.scores.tolist(), mined.source.tolist(), mined.target.tolist(), strict=True):
                    stream.write(f"{row[0]:.6f}\t{test.source_ids[row[1]]}\t{test.target_ids[row[2]]}\n")
        return [score]

    finish(args, map(measured, pairs))


def run_documents(args: argparse.Namespace) -> None:
    from fairseq_lxsr.evaluation import documents

    config = with_options(documents.PRESETS[args.protocol][args.classifier], args)
    learnt = args.train_langs or args.langs
    encoder = prepared_encoder(args)

    def measured() -> Iterator[list["Score"]]:
        yield documents.evaluate(args.protocol, args.data, learnt, args.langs, encoder, config, show_progress=True)

    finish(args, measured())


def run_xnli(args: argparse.Namespace) -> None:
    from fairseq_lxsr.evaluation import xnli

    config = with_options(xnli.PRESETS[args.preset], args)
    encoder = prepared_encoder(args)

    def measured() -> Iterator[list["Score"]]:
        yield xnli.evaluate(args.data, args.train_lang, args.langs, encoder, args.preset, config, show_progress=True)

    finish(args, measured())


def prepared_encoder(args: argparse.Namespace, texts: Iterable[str | Path] = ()) -> "Encoder":
    """The encoder, loaded once it is certain that the scores can be written, which may be hours later.

    Args:
        texts: the files that are read, where no output could be added to them anyway.
    """
    from fairseq_lxsr.evaluation.score import check_scores_file

    outputs = [args.output, getattr(args, "pairs_output", None)]
    refuse_overlap(outputs, [*texts, *model_files(args.model)])
    if args.output:
        check_scores_file(args.output)
    return load_any(args)


def with_options(config, args: argparse.Namespace):
    """The preset with what the user set."""
    chosen = {name: getattr(args, name) for name in ("epochs", "seeds") if getattr(args, name) is not None}
    return replace(config, **chosen)


def finish(args: argparse.Namespace, measured: Iterable[list["Score"]]) -> None:
    """Add scores to the file as they are measured; print the table and the signatures, also of a part of them."""
    from fairseq_lxsr.evaluation.published import published_table
    from fairseq_lxsr.evaluation.score import append_scores
    from fairseq_lxsr.evaluation.table import report_scores

    scores: list[Score] = []
    try:
        for some in measured:
            scores += some
            if args.output:
                append_scores(args.output, some)
    finally:
        if scores:
            print(report_scores(scores))
    if args.published:
        print("\n" + (published_table([args.protocol]) or f"No published scores of {args.protocol} are known here."))

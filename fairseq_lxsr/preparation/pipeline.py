"""Runs all preparation stages, from raw text to training data for fairseq-train.

A stage is skipped if its inputs and options have not changed.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fairseq_lxsr.encoder.starting_model import open_starting_model
from fairseq_lxsr.files.lines import count_file_lines
from fairseq_lxsr.files.locks import locked_work_folder
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.preparation.binarise import SUBWORD_FILES, binarise, shard_folders
from fairseq_lxsr.preparation.clean import TextPair, make_filters
from fairseq_lxsr.preparation.config import PrepareConfig
from fairseq_lxsr.preparation.corpus import (
    make_corpus,
    report_sets_not_in_text,
    warn_of_empty_sources,
    warn_of_entities,
)
from fairseq_lxsr.preparation.formats import Source, find_source
from fairseq_lxsr.preparation.leaks import drop_leaks
from fairseq_lxsr.preparation.new_pieces import extend_subwords
from fairseq_lxsr.preparation.splits import HeldOut
from fairseq_lxsr.preparation.stages import STAGE_FILE, is_external
from fairseq_lxsr.preparation.subwords import text_options_of, train_subwords
from fairseq_lxsr.preparation.tables import parse_columns
from fairseq_lxsr.text.chinese import require_converter
from fairseq_lxsr.text.languages import parse_tag, split_pair

SUMMARY_FILE = "prepare.json"


@dataclass(frozen=True)
class Prepared:
    """The result of `lxsr prepare`.

    Attributes:
        pairs: total number of training pairs, over all language pairs.
        unknown: highest percentage of unknown pieces in any text.
        data: data folder, or its shards.
        summary: file with the manifests of all stages.
    """

    pairs: int
    unknown: float
    data: list[Path]
    summary: Path


def prepare_corpora(config: PrepareConfig, until: str | None = None) -> Prepared | None:
    """Run all stages, and write their manifests to a summary file.

    Subwords, and corpora of pairs without a text in `config.pairs`, may be external, that is,
    created in the work folder by another program. They are used unchanged.

    Args:
        config: options of the preparation.
        until: last stage to run, `clean` or `subwords`; None runs all stages.

    Returns:
        The result, or None if `until` is given.

    Raises:
        InputError: if an option is invalid for the text, a text cannot be read, or another process
            is writing to the work folder.
    """
    if config.subwords.simplify_chinese:
        require_converter()
    with locked_work_folder(Path(config.work)):
        return _run_stages(config, until)


def _run_stages(config: PrepareConfig, until: str | None) -> Prepared | None:
    """Run the stages in the locked work folder."""
    corpora = {split_pair(pair): corpus_folder(config, pair) for pair in config.pairs}
    clean(config)
    if until == "clean":
        return None
    subwords = Path(config.work) / "subwords"
    if is_external(subwords, SUBWORD_FILES):
        print(f"{subwords}: external subwords, used unchanged")
    elif config.subwords.from_model:
        extend_subwords(subwords, corpora, config.subwords)
    else:
        train_subwords(subwords, list(corpora.values()), config.subwords)
    if until == "subwords":
        return None
    binarise(Path(config.work) / "data-bin", corpora, subwords, config.workers, config.shards)
    return summarise(config)


def clean(config: PrepareConfig) -> None:
    """Read, clean and split the text of every language pair.

    If two pairs share a language, they hold out the same sentences in that language, provided that
    both contain them. Text that one pair holds out is removed from the other pair's training text.

    Args:
        config: options of the preparation.

    Raises:
        InputError: if an option is invalid for the text, or a text cannot be read.
    """
    external = _external_corpora(config)
    for folder in external.values():
        print(
            f"{folder}: external corpus, used unchanged; its training text may contain sentences "
            "that other pairs hold out"
        )
    sources = _find_sources(config, external)
    is_shared = shares_a_language(config)
    read_as = _read_as(config)
    # If pairs share a language, the final corpora are built later, from the cleaned corpora.
    parent = Path(config.work) / ("cleaned" if is_shared else "corpus")
    folders: dict[TextPair, Path] = {}
    reports: dict[TextPair, dict] = {}
    for languages, source in sources.items():
        held_out = HeldOut(
            config.valid_size, config.test_size, config.seed, shared_side(config, languages)
        )
        folders[languages] = parent / "-".join(languages)
        reports[languages] = make_corpus(
            folders[languages],
            languages,
            source,
            config.cleaning,
            held_out,
            config.workers,
            read_as,
        )
    report_sets_not_in_text(reports)
    if is_shared:
        for languages, folder in folders.items():
            other_corpora = folders | external
            del other_corpora[languages]
            final = corpus_folder(config, "-".join(languages))
            reports[languages] = drop_leaks(
                final, languages, folder, other_corpora, config.workers, read_as
            )
    # Print the warnings last, where users will see them.
    for languages, report in reports.items():
        warn_of_empty_sources(languages, report)
        warn_of_entities(languages, report)


def _read_as(config: PrepareConfig) -> str:
    """Return the letters that the model will read as others; see `TextOptions`."""
    if config.subwords.from_model:
        return open_starting_model(config.subwords.from_model).tokenizer.options.read_as
    return text_options_of(config.subwords).read_as


def _external_corpora(config: PrepareConfig) -> dict[TextPair, Path]:
    """Return the folders of corpora that were created by another program."""
    external = {}
    for pair in config.pairs:
        if _is_corpus_external(config, pair):
            external[split_pair(pair)] = corpus_folder(config, pair)
    return external


def _is_corpus_external(config: PrepareConfig, pair: str) -> bool:
    names = [f"train.{language}" for language in split_pair(pair)]
    return config.pairs[pair] is None and is_external(corpus_folder(config, pair), names)


def _find_sources(config: PrepareConfig, external: dict[TextPair, Path]) -> dict[TextPair, Source]:
    """Find the text of each language pair that has no external corpus.

    Raises:
        InputError: if there is no text, or a filter does not support its languages. All pairs are
            checked before any text is read.
    """
    columns = parse_columns(config.columns) if config.columns else None
    sources = {}
    for pair, text in config.pairs.items():
        languages = split_pair(pair)
        if languages not in external:
            sources[languages] = find_source(text, *languages, columns)
    for languages, source in sources.items():
        # This call only serves to report errors early; each worker creates its own filters.
        make_filters(config.cleaning.for_text(source.is_messages).filters or {}, languages)
    return sources


def shares_a_language(config: PrepareConfig) -> bool:
    """Return whether two of the language pairs share a language."""
    return max(_pairs_by_language(config).values()) > 1


def shared_side(
    config: PrepareConfig, languages: tuple[str, str]
) -> Literal["source", "target"] | None:
    """Return the side of a language pair whose language occurs in more pairs.

    Returns:
        The side, or None if no other pair contains either language.
    """
    pairs = _pairs_by_language(config)
    source, target = (parse_tag(language).language for language in languages)
    if max(pairs[source], pairs[target]) == 1:
        return None
    # Compare language codes if the counts are equal, so that all pairs agree.
    return "source" if (pairs[source], source) >= (pairs[target], target) else "target"


def _pairs_by_language(config: PrepareConfig) -> Counter[str]:
    """Count the language pairs that contain each language, in any spelling of its code."""
    counts: Counter[str] = Counter()
    for pair in config.pairs:
        counts.update(parse_tag(language).language for language in split_pair(pair))
    return counts


def corpus_folder(config: PrepareConfig, pair: str) -> Path:
    """Return the corpus folder of a language pair."""
    return Path(config.work) / "corpus" / pair


def summarise(config: PrepareConfig) -> Prepared:
    """Write the manifests of all stages to one file, and return a summary of the prepared data."""
    work = Path(config.work)
    corpora = {pair: corpus_folder(config, pair) for pair in config.pairs}
    stages = dict(corpora)
    if shares_a_language(config):
        stages |= {f"cleaned {pair}": work / "cleaned" / pair for pair in config.pairs}
    stages |= {"subwords": work / "subwords", "data-bin": work / "data-bin"}
    manifests = {}
    for name, folder in stages.items():
        # A folder created by another program has no manifest.
        if (folder / STAGE_FILE).is_file():
            manifests[name] = json.loads((folder / STAGE_FILE).read_text(encoding="utf-8"))
    with atomic_write(work / SUMMARY_FILE) as stream:
        stream.write(json.dumps(manifests, indent=2) + "\n")
    training_texts = [folder / f"train.{split_pair(pair)[0]}" for pair, folder in corpora.items()]
    return Prepared(
        pairs=sum(map(count_file_lines, training_texts)),
        unknown=max(manifests["data-bin"]["report"]["unknown per cent"].values()),
        data=list(shard_folders(work / "data-bin")),
        summary=work / SUMMARY_FILE,
    )

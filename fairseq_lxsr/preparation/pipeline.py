"""The stages of a whole preparation, from raw text to fairseq-train's data; unchanged stages are
skipped.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fairseq_lxsr.files.lines import count_file_lines
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.preparation.binarise import SUBWORD_FILES, binarise, shard_folders
from fairseq_lxsr.preparation.catalogues import LOCALE_FOLDERS
from fairseq_lxsr.preparation.clean import make_filters
from fairseq_lxsr.preparation.config import PrepareConfig
from fairseq_lxsr.preparation.corpus import make_corpus, warn_of_empty_sources
from fairseq_lxsr.preparation.formats import find_source
from fairseq_lxsr.preparation.leaks import drop_leaks
from fairseq_lxsr.preparation.new_pieces import extend_subwords
from fairseq_lxsr.preparation.splits import HeldOut
from fairseq_lxsr.preparation.stages import STAGE_FILE, is_external
from fairseq_lxsr.preparation.subwords import train_subwords
from fairseq_lxsr.preparation.tables import parse_columns
from fairseq_lxsr.text.chinese import require_converter
from fairseq_lxsr.text.languages import parse_tag, split_pair

SUMMARY_FILE = "prepare.json"


@dataclass(frozen=True)
class Prepared:
    """The result of a preparation."""

    pairs: int  # for training, of all language pairs together
    unknown: float  # largest percent of unknown pieces of a text
    data: list[Path]  # the data folder, or its shards
    summary: Path  # file with the manifests of all stages


def prepare_corpora(
    config: PrepareConfig, locale_folders: Sequence[Path] = LOCALE_FOLDERS, until: str | None = None
) -> Prepared | None:
    """Run all stages, or `until` clean or subwords, and write the manifests of all stages into one
    file.

    A corpus without a named text, and the subwords, may have been made elsewhere: they are used as
    they are.
    """
    corpora = {split_pair(pair): corpus_folder(config, pair) for pair in config.pairs}
    if config.subwords.simplify_chinese:
        require_converter()
    clean(config, locale_folders)
    if until == "clean":
        return None
    subwords = Path(config.work) / "subwords"
    if is_external(subwords, SUBWORD_FILES):
        print(f"{subwords}: made elsewhere, kept")
    elif config.subwords.from_model:
        extend_subwords(subwords, corpora, config.subwords)
    else:
        train_subwords(subwords, list(corpora.values()), config.subwords)
    if until == "subwords":
        return None
    binarise(Path(config.work) / "data-bin", corpora, subwords, config.workers, config.shards)
    return summarise(config)


def clean(config: PrepareConfig, locale_folders: Sequence[Path] = LOCALE_FOLDERS) -> None:
    """Read, clean and split the text of every language pair.

    Where two pairs share a language, they hold out the same sentences of it as far as both have
    them, and text that is held out in one is removed from the other's training text.
    """
    named = {
        pair: text for pair, text in config.pairs.items() if not _is_corpus_external(config, pair)
    }
    elsewhere = {
        split_pair(pair): corpus_folder(config, pair) for pair in config.pairs.keys() - named.keys()
    }
    for folder in elsewhere.values():
        print(
            f"{folder}: made elsewhere, kept; its training text may have what other pairs hold out"
        )
    columns = parse_columns(config.columns) if config.columns else None
    pairs = {split_pair(pair): text for pair, text in named.items()}
    sources = {
        pair: find_source(text, *pair, locale_folders, columns) for pair, text in pairs.items()
    }
    for languages, source in sources.items():  # raises before any work
        make_filters(config.cleaning.for_text(source.is_messages).filters or {}, languages)
    shared = shares_a_language(config)
    parent = Path(config.work) / ("cleaned" if shared else "corpus")
    folders = {languages: parent / "-".join(languages) for languages in sources}
    reports = {}
    for languages, source in sources.items():
        held_out = HeldOut(
            config.valid_size, config.test_size, config.seed, shared_side(config, languages)
        )
        how = (config.cleaning, held_out, config.workers)
        reports[languages] = make_corpus(folders[languages], languages, source, *how)
    if shared:
        for languages, folder in folders.items():
            others = {
                other: made for other, made in (folders | elsewhere).items() if other != languages
            }
            final = corpus_folder(config, "-".join(languages))
            reports[languages] = drop_leaks(final, languages, folder, others, config.workers)
    for languages, report in reports.items():
        warn_of_empty_sources(languages, report)


def _is_corpus_external(config: PrepareConfig, pair: str) -> bool:
    text = [f"train.{language}" for language in split_pair(pair)]
    return config.pairs[pair] is None and is_external(corpus_folder(config, pair), text)


def shares_a_language(config: PrepareConfig) -> bool:
    """Return whether two of the language pairs share a language."""
    return max(_pairs_by_language(config).values()) > 1


def shared_side(
    config: PrepareConfig, languages: tuple[str, str]
) -> Literal["source", "target"] | None:
    """Return the side of a language pair whose language is in most pairs, if any of them is in
    another pair.
    """
    pairs = _pairs_by_language(config)
    codes = [parse_tag(language).language for language in languages]
    source, target = (pairs[code] for code in codes)
    if max(source, target) == 1:
        return None
    return "source" if (source, codes[0]) >= (target, codes[1]) else "target"


def _pairs_by_language(config: PrepareConfig) -> Counter[str]:
    return Counter(
        parse_tag(language).language for pair in config.pairs for language in split_pair(pair)
    )


def corpus_folder(config: PrepareConfig, pair: str) -> Path:
    """Return the corpus folder of a language pair."""
    return Path(config.work) / "corpus" / pair


def summarise(config: PrepareConfig) -> Prepared:
    """Write the manifests of all stages into one file."""
    work = Path(config.work)
    corpora = {pair: corpus_folder(config, pair) for pair in config.pairs}
    stages = dict(corpora)
    if shares_a_language(config):
        stages |= {f"cleaned {pair}": work / "cleaned" / pair for pair in config.pairs}
    stages |= {"subwords": work / "subwords", "data-bin": work / "data-bin"}
    manifests = {
        name: json.loads((folder / STAGE_FILE).read_text(encoding="utf-8"))
        for name, folder in stages.items()
        if (folder / STAGE_FILE).is_file()  # what was made elsewhere has none
    }
    with atomic_write(work / SUMMARY_FILE) as stream:
        stream.write(json.dumps(manifests, indent=2) + "\n")
    return Prepared(
        pairs=sum(
            count_file_lines(folder / f"train.{split_pair(pair)[0]}")
            for pair, folder in corpora.items()
        ),
        unknown=max(manifests["data-bin"]["report"]["unknown per cent"].values()),
        data=list(shard_folders(work / "data-bin")),
        summary=work / SUMMARY_FILE,
    )

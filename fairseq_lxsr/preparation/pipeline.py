"""The stages of a whole preparation, from raw text to fairseq-train's data; unchanged stages are skipped."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.preparation.binarise import binarise, shard_folders
from fairseq_lxsr.preparation.catalogues import LOCALE_FOLDERS
from fairseq_lxsr.preparation.clean import TextPair, make_filters
from fairseq_lxsr.preparation.config import PrepareConfig
from fairseq_lxsr.preparation.corpus import make_corpus
from fairseq_lxsr.preparation.formats import find_source
from fairseq_lxsr.preparation.leaks import check_leaks, drop_leaks
from fairseq_lxsr.preparation.stages import STAGE_FILE
from fairseq_lxsr.preparation.subwords import train_subwords
from fairseq_lxsr.text.languages import split_pair

SUMMARY_FILE = "prepare.json"


@dataclass(frozen=True)
class Prepared:
    """The result of a preparation.

    Args:
        pairs: number of training pairs of all language pairs together.
        unknown: largest percent of unknown pieces of a text.
        data: the data folder, or its shards.
        summary: file with the manifests of all stages.
    """

    pairs: int
    unknown: float
    data: list[Path]
    summary: Path


def prepare_corpora(config: PrepareConfig, locale_folders: Sequence[Path] = LOCALE_FOLDERS) -> Prepared:
    """Run all stages, and write the manifests of all stages into one file.

    Args:
        config: options of the preparation.
        locale_folders: folders of gettext catalogues.
    """
    clean(config, locale_folders)
    subwords(config)
    binarise_corpora(config)
    return summarise(config)


def clean(config: PrepareConfig, locale_folders: Sequence[Path] = LOCALE_FOLDERS) -> None:
    """Read, clean and split the text of every language pair.

    Where two pairs share a language, text that is held out in one is removed from the other's training text.
    """
    names = {split_pair(pair): text for pair, text in config.pairs.items()}
    sources = {pair: find_source(text, *pair, locale_folders) for pair, text in names.items()}
    for pair, source in sources.items():
        # raises before any work
        make_filters(config.cleaning.suited(source.is_messages).filters or {}, pair)
    shared = shares_a_language(config)
    folders = {pair: Path(config.work) / ("cleaned" if shared else "corpus") / "-".join(pair) for pair in names}
    for pair, source in sources.items():
        make_corpus(
            folders[pair],
            pair,
            source,
            config.cleaning,
            config.valid_size,
            config.test_size,
            config.seed,
            config.workers,
        )
    if shared:
        for pair, folder in folders.items():
            others = {other: folders[other] for other in folders if other != pair}
            drop_leaks(corpus_folder(config, "-".join(pair)), pair, folder, others, config.workers)


def subwords(config: PrepareConfig) -> None:
    """Train one SentencePiece model on the training text of all language pairs."""
    corpora = corpus_folders(config)
    for corpus in corpora.values():
        if not corpus.is_dir():
            raise InputError(f"{corpus}: no such folder; run `lxsr clean` first")
    check_leaks(corpora)
    train_subwords(Path(config.work) / "subwords", list(corpora.values()), config.subwords)


def binarise_corpora(config: PrepareConfig) -> None:
    """Write every split of every language pair as ids."""
    corpora, work = corpus_folders(config), Path(config.work)
    check_leaks(corpora)
    binarise(work / "data-bin", corpora, work / "subwords", config.workers, config.shards)


def shares_a_language(config: PrepareConfig) -> bool:
    """Return whether two of the language pairs share a language."""
    languages = [language for pair in config.pairs for language in split_pair(pair)]
    return len(set(languages)) < len(languages)


def corpus_folder(config: PrepareConfig, pair: str) -> Path:
    """Return the corpus folder of a language pair."""
    return Path(config.work) / "corpus" / pair


def corpus_folders(config: PrepareConfig) -> dict[TextPair, Path]:
    """Return the corpus folders of all language pairs."""
    return {split_pair(pair): corpus_folder(config, pair) for pair in config.pairs}


def summarise(config: PrepareConfig) -> Prepared:
    """Write the manifests of all stages into one file."""
    work = Path(config.work)
    stages = {pair: corpus_folder(config, pair) for pair in config.pairs}
    stages |= {f"cleaned {pair}": work / "cleaned" / pair for pair in config.pairs if shares_a_language(config)}
    stages |= {"subwords": work / "subwords", "data-bin": work / "data-bin"}
    manifests = {name: json.loads((folder / STAGE_FILE).read_text(encoding="utf-8")) for name, folder in stages.items()}
    with atomic_write(work / SUMMARY_FILE) as stream:
        stream.write(json.dumps(manifests, indent=2) + "\n")
    return Prepared(
        pairs=sum(manifests[pair]["report"]["pairs"]["train"] for pair in config.pairs),
        unknown=max(manifests["data-bin"]["report"]["unknown per cent"].values()),
        data=list(shard_folders(work / "data-bin")),
        summary=work / SUMMARY_FILE,
    )

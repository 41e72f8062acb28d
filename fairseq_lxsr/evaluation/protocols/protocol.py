"""What every protocol of `lxsr eval` is, and the options that several protocols share."""

import argparse
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_lxsr.errors import InputError, say
from fairseq_lxsr.evaluation.named_sets import datasets, find_file
from fairseq_lxsr.options import FILE_NAME, ON_LONG, TIES, at_least, check_fields, option
from fairseq_lxsr.text.languages import split_pairs

if TYPE_CHECKING:
    from fairseq_lxsr.embeddings import Encoder, Text
    from fairseq_lxsr.evaluation.labelled import ClassifierConfig
    from fairseq_lxsr.evaluation.score import Score

AlignedFiles = tuple[str, str, str, str]  # two languages, two paths


def comma_separated(what: str, allowed: Collection[str] = ()) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of different names with commas between them, as `type=` of argparse."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if (
            not all(names)
            or len(set(names)) != len(names)
            or (allowed and not set(names) <= set(allowed))
        ):
            raise argparse.ArgumentTypeError(
                f"{text!r:.60}; expected {what} with commas between them, each once"
            )
        return names

    return parse


@dataclass(frozen=True)
class Plan:
    """A protocol with its options checked and its text found."""

    measure: "Callable[[Encoder], Iterable[list[Score]]]"  # the scores, some at a time, as they are measured
    texts: Sequence[str | Path] = ()  # files that are read
    outputs: Sequence[str | Path] = ()  # files that are written beside the scores


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One way to score an encoder: a frozen dataclass whose fields are its options, declared by
    `options.option`.

        plan = Xsim(source="test.fr", target="test.en").plan()
        for scores in plan.measure(ModelFolder(SentenceEncoder.from_pretrained("model"))):
            append_scores("scores.jsonl", scores)

    Sub-classes define `prepare`, or derive from a class below, which does.
    """

    on_long: str = option(
        "texts longer than a model folder reads: cut, split-mean (the mean over their parts), or error; the signature "
        "has how many there were (default: cut; for classification split-mean)",
        "cut",
        ON_LONG,
    )

    def __post_init__(self):
        check_fields(self, spell=lambda name: f"--{name.replace('_', '-')}")

    def plan(self) -> Plan:
        """Check the options and find the text, before the encoder is loaded.

        Raises:
            InputError: for options that do not go together, and for text that is not there.
        """
        plan = self.prepare()
        return replace(plan, measure=lambda encoder: self._measured(plan, encoder))

    def prepare(self) -> Plan:
        """Make the plan, for an encoder that reads long texts as it is to; `plan` adds
        `on_long`.
        """
        raise NotImplementedError

    def _measured(self, plan: Plan, encoder: "Encoder") -> "Iterator[list[Score]]":
        """Measure with `on_long`; the scores say how many texts were longer than the model reads,
        where any was.
        """
        from fairseq_lxsr.embeddings import count_long, reading_long

        reader, before = reading_long(encoder, self.on_long), 0
        for scores in plan.measure(reader):
            count, before = count_long(reader) - before, count_long(reader)
            if count:
                how = (
                    "cut; --on-long split-mean reads them whole"
                    if self.on_long == "cut"
                    else "read in parts"
                )
                say(f"{scores[0].protocol}: texts longer than the model reads: {count:,}, {how}")
                scores = [with_long(score, f"{self.on_long}-{count}") for score in scores]
            yield scores


@dataclass(frozen=True, kw_only=True)
class AlignedText:
    """Options that name aligned files: sentences of two languages, line by line."""

    source: str | None = option(
        "sentences, one a line, for a single pair", None, FILE_NAME, metavar="FILE"
    )
    target: str | None = option("their translations, line by line", None, FILE_NAME, metavar="FILE")
    data: str | None = option(
        "instead of --source and --target: {lang} and {pair} are filled in, .txt and .gz added where needed, or with "
        "--dataset the folder of its files",
        None,
        FILE_NAME,
        metavar="TEMPLATE",
    )
    dataset: str | None = option(
        "a public test set, whose files and languages are known", None, tuple(datasets())
    )
    lang_pairs: str | None = option(
        "for example en-fr, with --data also several: en-fr,en-de", None, metavar="PAIRS"
    )

    both_directions = True  # whether both are measured, so that a pair need not be given in both

    def pairs(self) -> list[tuple[str, str]]:
        """Return the language pairs; without --lang-pairs one pair without names."""
        return (
            parse_lang_pairs(self.lang_pairs, self.both_directions)
            if self.lang_pairs
            else [("", "")]
        )

    def files(self) -> list[AlignedFiles]:
        """Find the files of every pair."""
        is_template = bool(self.data and self.lang_pairs) and not (self.source or self.target)
        if self.dataset and not is_template:
            raise InputError(
                f"--dataset {self.dataset}: expected --data FOLDER, --lang-pairs, no --source or --target"
            )
        if is_template:
            return [
                (
                    first,
                    second,
                    self._file(first, f"{first}-{second}"),
                    self._file(second, f"{first}-{second}"),
                )
                for first, second in self.pairs()
            ]
        if not (self.source and self.target) or self.data:
            raise InputError("expected either --source and --target, or --data and --lang-pairs")
        pairs = self.pairs()
        if len(pairs) > 1:
            raise InputError(
                f"--lang-pairs {self.lang_pairs} for one --source and --target; expected one pair"
            )
        return [(*pairs[0], self.source, self.target)]

    def _file(self, language: str, pair: str) -> str:
        assert self.data
        found = datasets()[self.dataset].path(self.data, language) if self.dataset else None
        return str(found or find_file(self.data, language, pair))

    def signed(self, scores: "list[Score]") -> "list[Score]":
        """Return the scores with the name of the test set in their signatures, where it has one."""
        if not self.dataset:
            return scores
        return [
            replace(score, settings={"dataset": self.dataset} | score.settings) for score in scores
        ]


@dataclass(frozen=True, kw_only=True)
class AlignedProtocol(AlignedText, Protocol):
    """What is measured on each pair of aligned files; sub-classes define `scores`."""

    def prepare(self) -> Plan:
        from fairseq_lxsr.evaluation.texts import read_aligned

        files = self.files()

        def measure(encoder: "Encoder") -> "Iterator[list[Score]]":
            for first, second, *paths in files:
                yield self.signed(
                    self.scores(*read_aligned((paths[0], paths[1]), (first, second)), encoder)
                )

        return Plan(measure, list(chain.from_iterable(pair[2:] for pair in files)))

    def scores(self, source: "Text", target: "Text", encoder: "Encoder") -> "list[Score]":
        """Measure one pair of aligned texts."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TransferProtocol(Protocol):
    """A classifier is trained in one language, tested in all (Schwenk and Li 2018); None is the
    protocol's own value.

    Sub-classes define `texts`, by language and part, and `scores`.
    """

    langs: tuple[str, ...] = option(
        "tested, for example en,de,fr", type=comma_separated("languages"), metavar="LANGS"
    )
    epochs: int | None = option(
        "passes over the training set; the best on dev is kept (default: as the protocol has it)",
        None,
        at_least(1),
    )
    seeds: int | None = option(
        "classifiers whose scores are averaged (default: the protocol's)", None, at_least(1)
    )
    ties: str | None = option(
        "epoch kept of the best on dev; LASER's code: last (default: first)", None, TIES
    )
    on_long: str = option(
        "texts longer than a model folder reads: split-mean (the mean over their parts), cut, or error; the signature "
        "has how many there were (default: split-mean)",
        "split-mean",
        ON_LONG,
    )

    def changed(self, config: "ClassifierConfig") -> "ClassifierConfig":
        """Return the protocol's values with what the user set."""
        given: dict[str, Any] = {"epochs": self.epochs, "seeds": self.seeds, "ties": self.ties}
        return replace(
            config, **{name: value for name, value in given.items() if value is not None}
        )

    def prepare(self) -> Plan:
        texts = self.texts()
        files = [found.file for parts in texts.values() for found in parts.values()]
        return Plan(lambda encoder: [self.scores(texts, encoder)], files)

    def texts(self) -> dict[str, dict[str, Any]]:
        raise NotImplementedError

    def scores(
        self,
        texts: Mapping[str, Mapping[str, Any]],
        encoder: "Encoder",
        config: "ClassifierConfig | None" = None,
    ) -> "list[Score]":
        """Train and test a classifier, by default that of the protocol."""
        raise NotImplementedError


def with_long(score: "Score", long: str) -> "Score":
    """Return the score with what its signature says of long texts, before the text and the
    model.
    """
    last = {name: score.settings[name] for name in ("text", "model") if name in score.settings}
    return replace(
        score,
        settings={k: v for k, v in score.settings.items() if k not in last} | {"long": long} | last,
    )


def parse_lang_pairs(text: str, both_directions: bool = True) -> list[tuple[str, str]]:
    """Parse --lang-pairs, for example en-fr,en-de; `both_directions` as in `AlignedText`."""
    try:
        pairs = split_pairs(text, distinct=False)
    except InputError as error:
        raise InputError(f"--lang-pairs {text}: {error}") from None
    for first, second in pairs if both_directions else ():
        if first != second and (second, first) in pairs:
            pair = f"{first}-{second}"
            raise InputError(
                f"--lang-pairs {text}: {pair} is given twice; both directions are measured anyway"
            )
    return pairs

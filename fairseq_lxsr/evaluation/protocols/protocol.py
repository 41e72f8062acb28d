"""Base classes of the protocols of `lxsr eval`, and options that several protocols share."""

import argparse
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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

# Source and target language, source and target path.
AlignedFiles = tuple[str, str, str, str]


def comma_separated(
    description: str, allowed: Collection[str] = ()
) -> Callable[[str], tuple[str, ...]]:
    """Create a parser for distinct comma-separated names, for argparse's `type=` argument.

    Args:
        description: description of the names, used in the message, for example "languages".
        allowed: names to choose from; empty allows any.

    Returns:
        A function from text to a tuple of names.
    """

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        are_distinct = len(set(names)) == len(names)
        are_allowed = not allowed or set(names) <= set(allowed)
        if not (all(names) and are_distinct and are_allowed):
            raise argparse.ArgumentTypeError(
                f"{text!r:.60} is invalid; expected {description} separated by commas, "
                "without repetition"
            )
        return names

    return parse


@dataclass(frozen=True)
class Plan:
    """An evaluation that is ready to run: its options are valid and its files exist.

    Args:
        measure: function that evaluates an encoder and yields the scores of each task as they
            become available.
        texts: input files.
        outputs: output files other than the scores.
    """

    measure: "Callable[[Encoder], Iterable[list[Score]]]"
    texts: Sequence[str | Path] = ()
    outputs: Sequence[str | Path] = ()


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Base class of evaluation protocols: frozen dataclasses whose fields are their options.

        plan = Xsim(source="test.fr", target="test.en").plan()
        for scores in plan.measure(ModelFolder(SentenceEncoder.from_pretrained("model"))):
            append_scores("scores.jsonl", scores)

    Fields are declared with `options.option`. Subclasses define `prepare`, or derive from one of
    the classes below, which define it.
    """

    on_long: str = option(
        "how to embed texts that are too long for a model folder: cut, split-mean (mean over the "
        "parts) or error; the signature includes their number (default: cut; for classification "
        "split-mean)",
        "cut",
        ON_LONG,
    )

    def __post_init__(self):
        check_fields(self, spell=lambda name: f"--{name.replace('_', '-')}")

    def plan(self) -> Plan:
        """Check the options and find the text, before the encoder is loaded.

        Returns:
            The plan, which measures with `on_long`.

        Raises:
            InputError: if options conflict, or text is missing.
        """
        plan = self.prepare()
        return replace(plan, measure=lambda encoder: self._measure(plan, encoder))

    def prepare(self) -> Plan:
        """Return the plan of this protocol; `plan` then applies `on_long` to it.

        Returns:
            The plan.
        """
        raise NotImplementedError

    def _measure(self, plan: Plan, encoder: "Encoder") -> "Iterator[list[Score]]":
        """Evaluate with `on_long`, and add the number of long texts, if any, to the signatures."""
        from fairseq_lxsr.embeddings import count_long, with_on_long

        reader = with_on_long(encoder, self.on_long)
        previous = 0
        for scores in plan.measure(reader):
            total = count_long(reader)
            count = total - previous
            previous = total
            if count:
                self._report_long(scores[0].protocol, count)
                scores = [with_long(score, f"{self.on_long}-{count}") for score in scores]
            yield scores

    def _report_long(self, protocol: str, count: int) -> None:
        action = "read in parts"
        if self.on_long == "cut":
            action = "cut; use --on-long split-mean to embed them completely"
        say(f"{protocol}: texts too long for the model: {count:,}, {action}")


@dataclass(frozen=True, kw_only=True)
class AlignedText:
    """Options for aligned files: sentences in two languages, line by line."""

    source: str | None = option(
        "source sentences of a single language pair, one per line", None, FILE_NAME, metavar="FILE"
    )
    target: str | None = option(
        "translations of --source, line by line", None, FILE_NAME, metavar="FILE"
    )
    data: str | None = option(
        "path of the files, instead of --source and --target; {lang} and {pair} are filled in, "
        ".txt and .gz may be missing; with --dataset: folder of the test set",
        None,
        FILE_NAME,
        metavar="TEMPLATE",
    )
    dataset: str | None = option(
        "name of a public test set, whose files and languages are known", None, tuple(datasets())
    )
    lang_pairs: str | None = option(
        "language pair, for example en-fr; with --data also several: en-fr,en-de",
        None,
        metavar="PAIRS",
    )

    # Whether both directions of a pair are evaluated, so that en-fr includes fr-en.
    both_directions = True

    def pairs(self) -> list[tuple[str, str]]:
        """Return the language pairs, or one pair of empty names without --lang-pairs.

        Returns:
            Source and target language of each pair.
        """
        if not self.lang_pairs:
            return [("", "")]
        return parse_lang_pairs(self.lang_pairs, self.both_directions)

    def files(self) -> list[AlignedFiles]:
        """Find the files of every pair.

        Returns:
            Languages and paths of each pair.

        Raises:
            InputError: if options conflict, or files are missing.
        """
        has_files = bool(self.source or self.target)
        if self.data and self.lang_pairs and not has_files:
            return [self._template_files(source, target) for source, target in self.pairs()]
        if self.dataset:
            raise InputError(
                f"--dataset {self.dataset} requires --data FOLDER and --lang-pairs, and cannot be "
                "combined with --source and --target"
            )
        return [self._single_pair()]

    def _single_pair(self) -> AlignedFiles:
        if not (self.source and self.target) or self.data:
            raise InputError("specify either --source and --target, or --data and --lang-pairs")
        pairs = self.pairs()
        if len(pairs) > 1:
            raise InputError(
                f"--lang-pairs {self.lang_pairs}: {len(pairs)} pairs for one --source and "
                "--target; specify one pair"
            )
        return (*pairs[0], self.source, self.target)

    def _template_files(self, source: str, target: str) -> AlignedFiles:
        assert self.data
        if self.dataset:
            test_set = datasets()[self.dataset]
            paths = [
                test_set.path(self.data, source, target),
                test_set.path(self.data, target, source),
            ]
        else:
            pair = f"{source}-{target}"
            paths = [find_file(self.data, language, pair) for language in (source, target)]
        return source, target, str(paths[0]), str(paths[1])


@dataclass(frozen=True, kw_only=True)
class AlignedProtocol(AlignedText, Protocol):
    """Base class of protocols that score pairs of aligned files. Subclasses define `scores`."""

    def prepare(self) -> Plan:
        from fairseq_lxsr.evaluation.texts import read_aligned

        files = self.files()

        def measure(encoder: "Encoder") -> "Iterator[list[Score]]":
            for source, target, source_file, target_file in files:
                texts = read_aligned((source_file, target_file), (source, target))
                yield with_dataset(self.scores(*texts, encoder), self.dataset)

        paths = []
        for _, _, source_file, target_file in files:
            paths += [source_file, target_file]
        return Plan(measure, paths)

    def scores(self, source: "Text", target: "Text", encoder: "Encoder") -> "list[Score]":
        """Score the encoder on one pair of aligned texts.

        Args:
            source: source sentences [N].
            target: their translations [N].
            encoder: encoder to score.

        Returns:
            The scores of the pair.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TransferProtocol(Protocol):
    """Base class of classifier protocols: train in one language, test in all (Schwenk and Li 2018).

    Options that are None use the protocol's default. Subclasses define `texts` and `scores`.
    """

    langs: tuple[str, ...] = option(
        "test languages, for example en,de,fr", type=comma_separated("languages"), metavar="LANGS"
    )
    epochs: int | None = option(
        "number of training epochs; the best on dev is selected (default: depends on the protocol)",
        None,
        at_least(1),
    )
    seeds: int | None = option(
        "number of classifiers to average (default: depends on the protocol)", None, at_least(1)
    )
    ties: str | None = option(
        "epoch to select if several are equally good; LASER's code uses last (default: first)",
        None,
        TIES,
    )
    on_long: str = option(
        "how to embed texts that are too long for a model folder: split-mean (mean over the "
        "parts), cut or error; the signature includes their number (default: split-mean)",
        "split-mean",
        ON_LONG,
    )

    def with_user_options(self, config: "ClassifierConfig") -> "ClassifierConfig":
        """Return the classifier settings of a protocol, with the options set by the user.

        Args:
            config: settings of the protocol.

        Returns:
            The settings with the options.
        """
        options: dict[str, Any] = {}
        for name in ("epochs", "seeds", "ties"):
            value = getattr(self, name)
            if value is not None:
                options[name] = value
        return replace(config, **options)

    def prepare(self) -> Plan:
        texts = self.texts()
        files = [part.file for parts in texts.values() for part in parts.values()]
        return Plan(lambda encoder: [self.scores(texts, encoder)], files)

    def texts(self) -> dict[str, dict[str, Any]]:
        """Read the labelled texts by language and split (train, dev, test).

        Returns:
            The labelled texts.
        """
        raise NotImplementedError

    def scores(
        self,
        texts: Mapping[str, Mapping[str, Any]],
        encoder: "Encoder",
    ) -> "list[Score]":
        """Train and test a classifier.

        Args:
            texts: labelled texts by language and split.
            encoder: encoder of the texts.

        Returns:
            The scores of all test languages.
        """
        raise NotImplementedError


def with_dataset(scores: "list[Score]", dataset: str | None) -> "list[Score]":
    """Add the name of a public test set, if any, to the signatures of scores.

    Args:
        scores: scores of one task.
        dataset: name of the test set, or None.

    Returns:
        The scores with the name.
    """
    if not dataset:
        return scores
    return [replace(score, settings={"dataset": dataset} | score.settings) for score in scores]


def with_long(score: "Score", long: str) -> "Score":
    """Add the setting `long` to the signature of a score, before the text and the model.

    Args:
        score: a score.
        long: how texts were treated that were too long, and their number.

    Returns:
        The score with the setting.
    """
    settings = dict(score.settings)
    last = {name: settings.pop(name) for name in ("text", "model") if name in settings}
    return replace(score, settings=settings | {"long": long} | last)


def parse_lang_pairs(text: str, both_directions: bool = True) -> list[tuple[str, str]]:
    """Parse --lang-pairs.

    Args:
        text: language pairs, for example en-fr,en-de.
        both_directions: whether both directions are evaluated, so that en-fr,fr-en is rejected.

    Returns:
        Source and target language of each pair.

    Raises:
        InputError: if a pair is invalid or repeated.
    """
    try:
        pairs = split_pairs(text, distinct=False)
    except InputError as error:
        raise InputError(f"--lang-pairs {text}: {error}") from None
    if not both_directions:
        return pairs
    for source, target in pairs:
        if source != target and (target, source) in pairs:
            raise InputError(
                f"--lang-pairs {text}: {source}-{target} is given twice; specify it once, "
                "because both directions are evaluated"
            )
    return pairs

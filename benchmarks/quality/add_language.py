"""What it costs to add a language to a trained model by examples/add_language: old vectors frozen, free, or rehearsed.

python -m benchmarks.quality.add_language --data DIR --work FOLDER --output benchmarks/quality/results/add_language.json

A model of the old pairs is trained and extended; from there it trains on the new pair alone with the old vectors frozen
or free, or on all pairs (rehearsal), each for as many updates. Beside it: all pairs from the start, with one vocabulary
of the same size, for the updates of both. Old pairs are trained on DIR/train, the new one on DIR/train and DIR/large. A
sentence must find its translation among its set and sentences of the training text.
"""

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks import ROOT
from benchmarks.corpora import prepare_sources, sources
from benchmarks.machine import commit, machine
from benchmarks.quality.sets import Encode, eval_sets, retrieval
from benchmarks.script import command_line, lxsr, run, write_results
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.text.tokenizer import DICTIONARY_FILE, read_dictionary

NEW_FOLDERS = ("train", "large")
COMMON = ("--cpu", "--num-workers", "1", "--disable-validation")


@dataclass(frozen=True)
class Study:
    """What is trained, and where.

    Attributes:
        work: for everything that is made.
        old: language pairs of the first model.
        new: the pair of the new language, which is its second.
        updates: of the first model, and those that follow.
        options: more options of every training.
    """

    data: Path
    work: Path
    old: list[str]
    new: str
    updates: tuple[int, int]
    vocab_size: int
    pieces: int
    options: list[str]

    @property
    def pairs(self) -> list[str]:
        return [*self.old, self.new]

    def corpus(self, pair: str) -> Path:
        """Training text of a pair."""
        return self.work / "together" / "corpus" / pair

    def prepare(self) -> None:
        """Text of the old pairs alone, and of all pairs."""
        texts = {pair: sources(self.data, pair, ("train",)) for pair in self.old}
        prepare_sources(self.work / "base", texts, self.vocab_size)
        texts[self.new] = sources(self.data, self.new, NEW_FOLDERS)
        prepare_sources(self.work / "together", texts, self.vocab_size + self.pieces)

    def train(self, name: str, folder: str, updates: int, *options) -> Path:
        """Train, or go on where it was interrupted. Returns: a model folder."""
        checkpoint, model = self.work / name / "checkpoint_last.pt", self.work / name / "model"
        run = (*COMMON, *self.options, "--max-update", updates, "--save-dir", checkpoint.parent, *options)
        lxsr("train", self.work / folder / "data-bin", "--recipe", "best", *run)
        lxsr("export", "folder", "--checkpoint", checkpoint, "--output", model)
        return model

    def extend(self) -> list[str]:
        """Pieces, data folder and first checkpoint of the extended model. Returns: what extend.py says."""
        folder, corpus = self.work / "extended", self.corpus(self.new)
        files = [f"train.{language}" for language in self.new.split("-")]
        old_text = [self.corpus(pair) / f"train.{pair[3:]}" for pair in self.old]
        words = [
            *(sys.executable, ROOT / "examples" / "add_language" / "extend.py", "--output", folder),
            *("--checkpoint", self.work / "base.run" / "checkpoint_last.pt", "--pieces", self.pieces),
            *("--known", corpus / files[0], "--new", corpus / files[1], "--old-text", *old_text),
        ]
        said = run(*words).stdout
        for pair in self.pairs:
            made_elsewhere = shutil.ignore_patterns("stage.json")  # so that `lxsr prepare` takes it as it is
            shutil.copytree(self.corpus(pair), folder / "corpus" / pair, ignore=made_elsewhere, dirs_exist_ok=True)
        lxsr("prepare", "--work", folder, "--lang-pairs", ",".join(self.pairs))
        return said.replace(f"{self.work}/", "").splitlines()

    def runs(self) -> Iterator[tuple[str, Path]]:
        """Train one model after the other; yields their names and folders."""
        first, more = self.updates
        extended = self.work / "extended"
        start = ("--finetune-from-model", extended / "start.pt")
        frozen = len(read_dictionary(self.work / "base" / "subwords" / DICTIONARY_FILE))
        yield "before", self.work / "base.run" / "model"
        model = extended / "model"
        text = extended / "data-bin"
        lxsr("export", "folder", "--checkpoint", extended / "start.pt", "--data", text, "--output", model)
        yield "vectors by regression, no training", model
        alone = (*start, "--lang-pairs", self.new)
        yield "frozen", self.train("frozen", "extended", more, *alone, "--frozen-pieces", frozen)
        yield "free", self.train("free", "extended", more, *alone)
        yield "rehearsal", self.train("rehearsal", "extended", more, *start)
        yield "together from the start", self.train("together.run", "together", first + more)


class Measure:
    """P@1 of the public sets of some pairs."""

    def __init__(self, study: Study, pairs: Sequence[str], candidates: int):
        self.sets = {pair: eval_sets(study.data, pair) for pair in pairs}
        self.crowd: dict[str, dict[str, list[str]]] = {}
        files = {
            language: study.corpus(pair) / f"train.{language}" for pair in study.pairs for language in pair.split("-")
        }
        for pair, sets in self.sets.items():
            self.crowd[pair] = {}
            for language in pair.split("-"):
                known = {sentence for sides in sets.values() for sentence in sides[language]}
                others = (line for line in read_lines(files[language]) if line not in known)
                self.crowd[pair][language] = list(islice(dict.fromkeys(others), candidates))

    def __call__(self, encode: Encode) -> dict[str, dict[str, dict[str, float]]]:
        """Percent: pair -> set -> direction -> P@1."""
        found: dict[str, dict] = {}
        for pair, sets in self.sets.items():
            results = retrieval(encode, sets, self.crowd[pair], {language: set() for language in self.crowd[pair]})
            found[pair] = {
                name: {direction: values["P@1"] for direction, values in directions.items()}
                for name, directions in results.items()
            }
        return found

    def split_otherwise(self, pairs: Sequence[str], old: Path, new: Path) -> dict[str, dict[str, dict[str, float]]]:
        """Percent of the sentences of some pairs' sets that two models split otherwise: pair -> set -> language."""
        tokenizers = [SentenceEncoder.from_pretrained(model).tokenizer for model in (old, new)]

        def share(lines: list[str]) -> float:
            before, after = (tokenizer.encode(lines) for tokenizer in tokenizers)
            other = sum(not np.array_equal(*two) for two in zip(before, after, strict=True))
            return round(100 * other / len(lines), 2)

        return {
            pair: {
                name: {language: share(lines) for language, lines in sides.items()}
                for name, sides in self.sets[pair].items()
            }
            for pair in pairs
        }


def main() -> None:
    parser = command_line(__doc__, required=True)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="text, as `run` reads it")
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="for everything that is made")
    parser.add_argument("--old", nargs="+", default=["en-fr", "en-de"], metavar="PAIR", help="default: en-fr en-de")
    parser.add_argument("--new", default="en-ru", metavar="PAIR", help="default: en-ru")
    parser.add_argument(
        "--zero-shot", nargs="*", default=["de-ru"], metavar="PAIR", help="measured too (default: de-ru)"
    )
    parser.add_argument("--updates", nargs=2, type=int, default=[2500, 1000], metavar="N", help="default: 2500 1000")
    parser.add_argument("--vocab-size", type=int, default=24_000, metavar="N", help="of the old (default: 24000)")
    parser.add_argument("--pieces", type=int, default=8_000, metavar="N", help="new ones (default: 8000)")
    parser.add_argument("--candidates", type=int, default=50_000, metavar="N", help="default: 50000")
    parser.add_argument("--options", default="", metavar="OPTIONS", help="more options of every training")
    args = parser.parse_args()
    sizes = (tuple(args.updates), args.vocab_size, args.pieces, args.options.split())
    study = Study(args.data, args.work.absolute(), args.old, args.new, *sizes)
    study.prepare()
    study.train("base.run", "base", args.updates[0])
    result: dict = {"machine": machine(), "commit": commit(), "old": args.old, "new": args.new, "updates": args.updates}
    result |= {"options": args.options, "extend.py": study.extend(), "candidates": args.candidates, "P@1": {}}
    measure = Measure(study, [*study.pairs, *args.zero_shot], args.candidates)
    for name, model in study.runs():
        result["P@1"][name] = measure(SentenceEncoder.from_pretrained(model).encode)
        print(name, json.dumps(result["P@1"][name]), flush=True)
        write_results(args.output, result)  # as far as it is
    models = (study.work / name / "model" for name in ("base.run", "extended"))
    result["sentences split otherwise"] = measure.split_otherwise(study.old, *models)
    write_results(args.output, result)


if __name__ == "__main__":
    main()

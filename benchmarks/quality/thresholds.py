"""Thresholds of scores: of translations by language, and of searches without an answer.

python -m benchmarks.quality.thresholds --data DIR --model lxsr-static \
    --output benchmarks/quality/results/thresholds.json

DIR has eval/ with the files of `quality.pretrained`. For each language, the pairs of Tatoeba with
English are translations. As many pairs are not: random pairs, or near pairs, which are an English
sentence and the sentence that is nearest to it, but not its translation. A threshold is chosen on
the even pairs and measured on the odd ones, for the cosine and for the ratio margin, whose
neighbours are the other sentences of the set.

The questions of XQuAD search its paragraphs in an index without options, twice: as it is, and
without the paragraph with their answer. Even questions choose the threshold, odd ones measure it.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.machine import machine
from benchmarks.quality.pretrained import TATOEBA
from benchmarks.quality.sets import read_text
from benchmarks.script import command_line, write_results
from fairseq_lxsr.embeddings import Encoder, Text, embed, load
from fairseq_lxsr.search import CorpusIndex
from fairseq_lxsr.search.passages import PassageRanker
from fairseq_lxsr.vectors import margin_scores, nearest_neighbours, neighbourhood, normalise_rows

# Scores of translations and of other pairs.
Sample = tuple[np.ndarray, np.ndarray]
NEIGHBOURS = 4
# Questions and paragraphs of XQuAD.
SEARCHES = ("en-en", "de-de", "es-es", "ru-ru", "zh-zh", "ar-ar", "hi-hi", "es-en", "zh-en")
SHOWN_THRESHOLDS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6)


def best_threshold(positives: np.ndarray, negatives: np.ndarray) -> float:
    """Return the score with the highest F1."""
    candidates = np.sort(positives)
    recalls = np.arange(len(positives), 0, -1)
    false = len(negatives) - np.searchsorted(np.sort(negatives), candidates)
    f1 = 2 * recalls / (recalls + false + len(positives))
    return float(candidates[f1.argmax()])


def f1_at(threshold: float, sample: Sample) -> float:
    """Return F1 of the pairs with at least this score, in percent."""
    positives, negatives = sample
    right = np.count_nonzero(positives >= threshold)
    wrong = np.count_nonzero(negatives >= threshold)
    return 200 * right / (right + wrong + len(positives))


def half(sample: Sample, first: int) -> Sample:
    """Return the even pairs (0) or the odd pairs (1) of a sample."""
    return sample[0][first::2], sample[1][first::2]


# -- translations


def score_pairs(source: np.ndarray, target: np.ndarray) -> dict[str, Sample]:
    """Return the cosines and margins of aligned embeddings [N, D], and of wrong pairs."""
    rows = np.arange(len(source))
    near_cosines, near_rows = nearest_neighbours(source, target, NEIGHBOURS)
    source_means = neighbourhood(near_cosines)
    target_means = neighbourhood(nearest_neighbours(target, source, NEIGHBOURS)[0])
    wrong_rows = {
        # A shift pairs each sentence with one that is not its translation.
        "random": np.roll(rows, len(rows) // 2 + 1),
        "near": np.where(near_rows[:, 0] == rows, near_rows[:, 1], near_rows[:, 0]),
    }

    def scores(targets: np.ndarray) -> dict[str, np.ndarray]:
        cosines = (source * target[targets]).sum(axis=1)
        margins = margin_scores(cosines, source_means, target_means[targets], "ratio")
        return {"cosine": cosines, "margin": margins}

    right = scores(rows)
    samples = {}
    for name, targets in wrong_rows.items():
        for score, values in scores(targets).items():
            samples[f"{score}, {name} pairs"] = (right[score], values)
    return samples


def translations(encoder: Encoder, folder: Path) -> dict[str, dict[str, Sample]]:
    """Return the scores of the pairs with English by language."""
    samples = {}
    for language, code in TATOEBA.items():
        prefix = folder / f"tatoeba-v1.{code}-eng"
        paths = [Path(f"{prefix}.{side}.txt.gz") for side in ("eng", code)]
        if paths[1].is_file():
            english, texts = [
                normalise_rows(embed(encoder, Text(read_text(path), side), zeros=True))
                for side, path in zip(("en", language), paths, strict=True)
            ]
            samples[language] = score_pairs(english, texts)
    return samples


def judge_pairs(samples: dict[str, dict[str, Sample]], score: str) -> dict[str, dict[str, float]]:
    """Return the thresholds of each language, and F1 of each and of the common threshold."""
    even = [half(by_score[score], 0) for by_score in samples.values()]
    common = best_threshold(
        np.concatenate([sample[0] for sample in even]),
        np.concatenate([sample[1] for sample in even]),
    )
    rows = {}
    for language, by_score in samples.items():
        threshold = best_threshold(*half(by_score[score], 0))
        odd = half(by_score[score], 1)
        rows[language] = {
            "median": round(float(np.median(by_score[score][0])), 2),
            "99 % of wrong pairs below": round(float(np.quantile(by_score[score][1], 0.99)), 2),
            "threshold": round(threshold, 2),
            "f1": round(f1_at(threshold, odd), 1),
            "common": round(common, 2),
            "f1 common": round(f1_at(common, odd), 1),
        }
    return rows


def judge_translations(samples: dict[str, dict[str, Sample]]) -> dict[str, dict]:
    """Return the results of `judge_pairs` by kind of score and of wrong pairs, and print them."""
    results = {}
    for score in next(iter(samples.values())):
        rows = judge_pairs(samples, score)
        results[score] = rows
        print(f"{score}\n| language | {' | '.join(next(iter(rows.values())))} |")
        for language, row in rows.items():
            print(f"| {language} | {' | '.join(map(str, row.values()))} |")
        for name in ("f1", "f1 common"):
            values = [row[name] for row in rows.values()]
            print(f"{name}: mean {fmean(values):.1f}, smallest {min(values):.1f}")
    return results


# -- searches


def search_scores(
    encoder: Encoder, questions: Sequence[str], paragraphs: Sequence[str], answers: Sequence[int]
) -> Sample:
    """Return the first score of each question, with its paragraph and without it."""
    ranker = PassageRanker(encoder)
    ids = [str(row) for row in range(len(paragraphs))]
    with_answer = np.zeros(len(questions))
    without = np.zeros(len(questions))
    with tempfile.TemporaryDirectory() as folder:
        index = CorpusIndex.build(Path(folder) / "index", paragraphs, encoder, ids=ids)
        for number, hits in enumerate(index.search(questions, encoder, k=1, ranker=ranker)):
            with_answer[number] = hits[0].score
        by_answer: dict[int, list[int]] = {}
        for number, answer in enumerate(answers):
            by_answer.setdefault(answer, []).append(number)
        for answer, numbers in by_answer.items():
            texts = [questions[number] for number in numbers]
            rest = [name for name in ids if name != str(answer)]
            all_hits = index.search(texts, encoder, k=1, ranker=ranker, where=rest)
            for number, hits in zip(numbers, all_hits, strict=True):
                without[number] = hits[0].score
    return with_answer, without


def shares(threshold: float, sample: Sample) -> dict[str, float]:
    """Return the percentages of questions refused without their answer, and lost with it."""
    with_answer, without = sample
    return {
        "refused": round(100 * float(np.mean(without < threshold)), 1),
        "lost": round(100 * float(np.mean(with_answer < threshold)), 1),
    }


def judge_search(sample: Sample) -> dict[str, object]:
    """Return the threshold chosen on even questions, and shares of the odd ones by threshold."""
    odd = half(sample, 1)
    threshold = best_threshold(*half(sample, 0))
    by_threshold = {str(value): shares(value, odd) for value in SHOWN_THRESHOLDS}
    chosen = {"threshold": round(threshold, 2), **shares(threshold, odd)}
    return {"chosen": chosen, "thresholds": by_threshold}


def searches(encoder: Encoder, folder: Path) -> dict[str, dict[str, object]]:
    """Return the results of each pair of languages of XQuAD."""
    answers = [int(line) - 1 for line in read_text(folder / "xquad-relevant.txt.gz")]
    rows = {}
    for pair in SEARCHES:
        question_language, paragraph_language = pair.split("-")
        questions = read_text(folder / f"xquad-questions.{question_language}.txt.gz")
        paragraphs = read_text(folder / f"xquad-paragraphs.{paragraph_language}.txt.gz")
        rows[pair] = judge_search(search_scores(encoder, questions, paragraphs, answers))
        print(pair, rows[pair], flush=True)
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with eval/")
    parser.add_argument("--model", required=True, help="model folder or name")
    args = parser.parse_args()
    encoder = load(args.model)
    results = {"model": args.model, "fingerprint": encoder.fingerprint, "machine": machine()}
    results |= judge_translations(translations(encoder, args.data / "eval"))
    results["search"] = searches(encoder, args.data / "eval")
    write_results(args.output, results)


if __name__ == "__main__":
    main()

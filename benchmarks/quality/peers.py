"""A packaged model among public models: the table of docs/choose.md and its chart.

python -m benchmarks.quality.peers --data DIR --model lxsr-static

DIR has clones of public repositories, under their names: LASER, NTREX, stsb-multi-mt and xquad. A
task whose clone is missing keeps its scores if the model is the same, and loses them otherwise.
`--speed` also measures sentences by second of processor time. `--scores FILE.jsonl` appends the
scores with their signatures, for `lxsr export card --scores`.

The published scores in results/peers.json are those of the repository embeddings-benchmark/results,
whose commit the file names. Ours are those of `lxsr eval`, which measures as MTEB does.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks import ROOT
from benchmarks.machine import machine
from benchmarks.pictures import ASSETS, NAMES, PEERS, draw_peers, read_json
from benchmarks.script import alone, lxsr, write_results
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.evaluation.score import append_scores, read_scores
from fairseq_lxsr.files.lines import read_lines

PAGE = ROOT / "docs" / "choose.md"
# The table of the page stands between these comments.
BEGIN = "<!-- peers: python -m benchmarks.quality.peers writes this table -->\n"
END = "<!-- end of peers -->"
SENTENCES = 20_000
# Everyday sentences of 6 words have about 11 word pieces with the marks of both ends.
PIECES = 11
BATCH = 16

# Scores in percent by name, for example `de->en`.
Scores = Mapping[str, float]


class Task(NamedTuple):
    """A task of MTEB, and how `lxsr eval` measures it.

    Attributes:
        protocol: protocol of `lxsr eval`.
        dataset: test set of `lxsr eval`.
        folder: clone of the public repository with the text.
        value: name of the score.
        languages: languages of the published scores.
        directions: names of the scores of a language in `lxsr eval`, without the language.
    """

    protocol: str
    dataset: str
    folder: str
    value: str
    languages: Sequence[str]
    directions: Sequence[str]

    def names(self, direction: str) -> list[str]:
        """Return the names of the scores of all languages, for example `de->en`."""
        return [direction.format(language) for language in self.languages]


TASKS = {
    "Tatoeba": Task("mteb-bitext", "tatoeba-v1", "LASER", "F1", list(NAMES), ["{0}->en"]),
    "NTREXBitextMining": Task(
        *("mteb-bitext", "ntrex128", "NTREX", "F1"),
        [language for language in NAMES if language != "et"],
        ["{0}->en", "en->{0}"],
    ),
    "STSBenchmarkMultilingualSTS": Task(
        *("sts", "stsb-multi-mt", "stsb-multi-mt", "Spearman"),
        ["de", "en", "es", "fr", "it", "nl", "pl", "pt", "ru", "zh"],
        ["{0}-{0}"],
    ),
    "XQuADRetrieval": Task(
        *("passages", "xquad", "xquad", "nDCG@10"),
        ["ar", "de", "el", "en", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh"],
        ["{0}->{0}"],
    ),
}


def measure(task: Task, model: str, data: Path, scores: Path | None) -> dict[str, float]:
    """Measure a task by the command.

    Args:
        task: the task.
        model: name or folder of the model.
        data: folder of the clones.
        scores: file to which the scores are appended, with their signatures.

    Returns:
        The scores by name, for example `de->en`.
    """
    pairs = []
    for direction in task.directions:
        pairs += [name.replace("->", "-") for name in task.names(direction)]
    with tempfile.TemporaryDirectory() as temporary:
        output = Path(temporary, "scores.jsonl")
        command = ["eval", task.protocol, "--model", model, "--dataset", task.dataset]
        command += ["--data", str(data / task.folder), "--lang-pairs", ",".join(pairs)]
        lxsr(*command, "--output", output)
        measured = read_scores(output)
    if scores:
        append_scores(scores, measured)
    return {score.task: round(score.values[task.value], 2) for score in measured}


def seconds(function: Callable[[], object]) -> float:
    """Return the processor time of a call, which other programs hardly change."""
    start = time.process_time()
    function()
    return time.process_time() - start


def static_speed(model: str, data: Path) -> float:
    """Return the sentences of a model's first call by seconds of processor time."""
    files = sorted((data / "LASER" / "data" / "tatoeba" / "v1").glob("tatoeba.*-eng.eng"))
    lines = [line for file in files for line in read_lines(file)][:SENTENCES]
    encoder = SentenceEncoder.from_pretrained(model)
    encoder.encode(["one"])
    return len(lines) / seconds(lambda: encoder.encode(lines))


def network_speed(layers: int, width: int) -> float:
    """Return the sentences of a BERT of this size by seconds of processor time, without tokenizer.

    Its weights are random, which does not change its speed.
    """
    import torch
    from transformers import BertConfig, BertModel

    torch.set_num_threads(1)
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": 4 * width}
    config = BertConfig(**sizes, vocab_size=1000, num_attention_heads=width // 64)
    network = BertModel(config).eval()
    pieces = torch.randint(1000, (BATCH, PIECES))
    with torch.inference_mode():
        times = [seconds(lambda: network(pieces)) for _ in range(4)]
    return BATCH / float(min(times[1:]))


def measure_speeds(
    models: Mapping[str, Any], ours: str, model: str, data: Path
) -> dict[str, float]:
    """Return the speed of our model and of networks like BERT, in two digits.

    Args:
        models: all models by name.
        ours: name of our model.
        model: name or folder of our model.
        data: folder of the clones.
    """
    speeds = {ours: alone(static_speed, model, data)}
    sizes: dict[tuple[int, int], float] = {}
    for name, row in models.items():
        if "width" in row:
            size = row["layers"], row["width"]
            if size not in sizes:
                sizes[size] = alone(network_speed, *size)
            speeds[name] = sizes[size]
    return {name: float(f"{speed:.2g}") for name, speed in speeds.items()}


# -- table


def mean(scores: Scores, names: Sequence[str]) -> str:
    """Return the mean of the named scores; a dash if one is missing."""
    if not set(names) <= set(scores):
        return "-"
    return f"{fmean(scores[name] for name in names):.1f}"


def score_cells(scores: Mapping[str, Scores]) -> list[str]:
    """Return the cells of a model: the means of its tasks, and XQuAD in two languages."""
    cells = []
    for name, task in TASKS.items():
        cells += [mean(scores.get(name, {}), task.names(way)) for way in task.directions]
    questions = scores.get("XQuADRetrieval", {})
    return [*cells, *(mean(questions, [name]) for name in ("hi->hi", "th->th"))]


def table(results: Mapping[str, Any]) -> str:
    """Return the table as it stands on the page: all models, the smallest first."""
    lines = [
        "| model | kind | MB | languages | sentences per CPU second | Tatoeba | NTREX, to English "
        "| NTREX, from English | STSb | XQuAD | XQuAD, hi | XQuAD, th |",
        "|---" * 12 + "|",
    ]
    by_size = sorted(results["models"].items(), key=lambda item: item[1]["MB"])
    for name, model in by_size:
        speed = results["speeds"].get(name)
        cells = [
            f"[{model['label']}]({model['url']})",
            model["kind"],
            f"{model['MB']:,}",
            str(model["languages"]),
            "-" if speed is None else f"{speed:,.0f}",
            *score_cells(results["scores"][name]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def write_page(results: Mapping[str, Any]) -> None:
    """Write the table into the page, between its comments."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the clones")
    parser.add_argument("--model", default="lxsr-static", help="name or folder of the model")
    parser.add_argument("--speed", action="store_true", help="measure speeds, too")
    parser.add_argument("--scores", type=Path, metavar="FILE.jsonl", help="append the scores")
    args = parser.parse_args()
    results = read_json(PEERS)
    encoder = SentenceEncoder.from_pretrained(args.model)
    ours = results["model"]
    scores = results["scores"][ours] if results["fingerprint"] == encoder.fingerprint else {}
    for name, task in TASKS.items():
        if (args.data / task.folder).is_dir():
            scores[name] = measure(task, args.model, args.data, args.scores)
    assert encoder.folder is not None
    size = sum(path.stat().st_size for path in encoder.folder.iterdir() if path.is_file())
    results["models"][ours] |= {"MB": round(size / 1e6), "languages": len(encoder.languages)}
    results["scores"][ours] = scores
    results["fingerprint"] = encoder.fingerprint
    if args.speed:
        results["speeds"] |= measure_speeds(results["models"], ours, args.model, args.data)
        results["machine"] = machine()
    write_results(PEERS, results)
    write_page(results)
    draw_peers().save(ASSETS / "peers.svg")
    print(table(results))


if __name__ == "__main__":
    main()

"""P@1 of a packaged model in each of its languages, by cosine and with re-ranking.

python -m benchmarks.quality.languages --data DIR --model lxsr-static \
    --output benchmarks/quality/results/languages.json

All figures are those of `lxsr eval tatoeba`, with its default options and with `--rerank 10`. DIR
has eval/ with the files of `quality.pretrained`.
"""

import json
import tempfile
from pathlib import Path

from benchmarks.machine import machine
from benchmarks.quality.pretrained import TATOEBA
from benchmarks.script import command_line, lxsr, read_results, write_results

# By the name of a set: its files, and the language code of English in their names.
FILES = {
    "Tatoeba": ("tatoeba-v1.{pair}.{lang}", "eng"),
    "PUD": ("pud.{lang}", "en"),
    "XQuAD questions": ("xquad-questions.{lang}", "en"),
}
WAYS = {"cosine": [], "rerank 10": ["--rerank", "10"]}

# P@1 in percent from English and into English, by language.
Scores = dict[str, list[float]]


def languages_of(name: str, folder: Path) -> dict[str, str]:
    """Return the languages whose files exist, by the codes in the names of their files."""
    template, english = FILES[name]
    languages = {}
    for language, code in TATOEBA.items():
        code = code if english == "eng" else language
        file = template.format(pair=f"{code}-{english}", lang=code)
        if (folder / f"{file}.txt.gz").is_file():
            languages[code] = language
    return languages


def measure(model: str, name: str, folder: Path, options: list[str]) -> tuple[Scores, str]:
    """Measure a set by the command.

    Returns:
        The scores, and the fingerprint of the model.
    """
    template, english = FILES[name]
    languages = languages_of(name, folder)
    pairs = ",".join(f"{code}-{english}" for code in languages)
    with tempfile.TemporaryDirectory() as temporary:
        output = Path(temporary, "scores.jsonl")
        command = ["eval", "tatoeba", "--model", model, "--data", folder / template]
        lxsr(*command, "--lang-pairs", pairs, *options, "--output", output)
        lines = read_results(output)
    scores: Scores = {language: [0.0, 0.0] for language in languages.values()}
    for line in lines:
        source, target = line["task"].split("->")
        direction = int(target == english)
        language = languages[source if direction else target]
        scores[language][direction] = round(100 - line["values"]["error"], 2)
    return scores, lines[0]["settings"]["model"]


def main() -> None:
    parser = command_line(__doc__, required=True)
    parser.add_argument("--data", type=Path, required=True, help="folder with eval/")
    parser.add_argument("--model", required=True, help="model folder or name")
    args = parser.parse_args()
    sets: dict[str, dict[str, Scores]] = {}
    for name in FILES:
        sets[name] = {}
        for way, options in WAYS.items():
            scores, fingerprint = measure(args.model, name, args.data / "eval", options)
            sets[name][way] = scores
    result = {"model": args.model, "fingerprint": fingerprint, "machine": machine(), "P@1": sets}
    write_results(args.output, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()

"""Choose the text of the demo: python choose.py PAIRS.en.txt.gz PAIRS.fr.txt.gz OUTPUT.tsv.gz

The pairs are everyday sentences that people would search for: 3 to 12 words, no names, and each
sentence only once.
"""

import gzip
import random
import re
import sys

from fairseq_lxsr.files.lines import read_parallel

Pair = tuple[str, str]

# Maximum number of pairs.
PAIRS = 20_000
# Allowed numbers of words.
WORDS = range(3, 13)
WITH_CAPITAL = re.compile(
    r"(?:I|I'm|I'd|I'll|I've|Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
    r"|English|French)"
)
NAMES = {
    "tom", "mary", "marie", "john", "jean", "jim", "ken", "bob", "jack", "mike", "bill", "jane",
    "nancy", "alice", "taro",
}  # fmt: skip


def is_everyday(sentence: str) -> bool:
    """Return whether a sentence has 3 to 12 words and no name."""
    words = re.findall(r"[\w'\u2019-]+", sentence)
    if len(words) not in WORDS:
        return False
    if not NAMES.isdisjoint(re.findall(r"\w+", sentence.lower())):
        return False
    # The first word of a second sentence has a capital letter too.
    parts = [part.split() for part in re.split(r"[.?!]\s+", sentence)[1:]]
    first_words = {part[0].strip(",;:.?!'\u2019") for part in parts if part}
    for word in words[1:]:
        if word[0].isupper() and word not in first_words and not WITH_CAPITAL.fullmatch(word):
            return False
    return True


def distinct(pairs: list[Pair]) -> list[Pair]:
    """Return the pairs whose sentences do not occur in an earlier pair, in either language."""
    chosen = []
    sentences: set[str] = set()
    for pair in pairs:
        keys = {sentence.lower().strip(" .!?") for sentence in pair}
        if sentences.isdisjoint(keys):
            sentences |= keys
            chosen.append(pair)
    return chosen


def main(source: str, target: str, output: str) -> None:
    pairs = [pair for pair in read_parallel(source, target) if all(map(is_everyday, pair))]
    random.Random(1).shuffle(pairs)
    available = distinct(pairs)
    chosen = available[:PAIRS]
    text = "".join("\t".join(pair) + "\n" for pair in chosen)
    compressed = gzip.compress(text.encode(), 9, mtime=0)
    with open(output, "wb") as stream:
        stream.write(compressed)
    print(f"{output}: {len(chosen):,} of {len(available):,} pairs, {len(compressed):,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])

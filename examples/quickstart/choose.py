"""Choose the text of the demo: python choose.py PAIRS.en.txt.gz PAIRS.fr.txt.gz OUTPUT.tsv.gz

Sentences of everyday life that a person would look for: 3 to 12 words, no names, each sentence
once.
"""

import gzip
import random
import re
import sys

from fairseq_lxsr.files.lines import read_parallel

HOW_MANY, WORDS = 20_000, range(3, 13)
WITH_CAPITAL = re.compile(
    r"(?:I|I'm|I'd|I'll|I've|Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday|English|French)"
)
NAMES = {
    "tom",
    "mary",
    "marie",
    "john",
    "jean",
    "jim",
    "ken",
    "bob",
    "jack",
    "mike",
    "bill",
    "jane",
    "nancy",
    "alice",
    "taro",
}


def is_everyday(sentence: str) -> bool:
    """Say whether a sentence has 3 to 12 words, and no name."""
    words = re.findall(r"[\w'\u2019-]+", sentence)
    inner = [word for word in words[1:] if word[0].isupper() and not WITH_CAPITAL.fullmatch(word)]
    starts = re.split(r"[.?!]\s+", sentence)  # a second sentence begins with a capital too
    begins = {start.split()[0].strip(",;:.?!'\u2019") for start in starts[1:] if start.split()}
    known = all(word in begins for word in inner)
    return len(words) in WORDS and known and NAMES.isdisjoint(re.findall(r"\w+", sentence.lower()))


def main(source: str, target: str, output: str) -> None:
    pairs = [pair for pair in read_parallel(source, target) if all(map(is_everyday, pair))]
    random.Random(1).shuffle(pairs)
    seen: set[str] = set()
    chosen = []
    for pair in pairs:
        keys = {sentence.lower().strip(" .!?") for sentence in pair}
        if seen.isdisjoint(keys):
            seen |= keys
            chosen.append(pair)
    packed = gzip.compress(
        "".join("\t".join(pair) + "\n" for pair in chosen[:HOW_MANY]).encode(), 9, mtime=0
    )
    with open(output, "wb") as stream:
        stream.write(packed)
    print(
        f"{output}: {min(len(chosen), HOW_MANY):,} of {len(chosen):,} pairs, {len(packed):,} bytes"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Kill edits of an index at random moments, while other processes read it.

    python tests/kill_index_at_random.py FOLDER --kills 200 --readers 2

Documents come and go in batches: an edit adds, replaces or deletes a whole batch. After each kill
the index must be the one before the edit or the one after it. Each reader opens the index again and
again; each time it must find whole batches, each with one version of its texts. At the end, the
number of kills before and after the moment at which an edit becomes visible is printed.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from fairseq_lxsr.search import CorpusIndex

BATCH = 40
BATCHES = 30
WIDTH = 32
EDITS = ("add", "update", "delete", "compact")


class Encoder:
    """Embeds a text by the numbers in it."""

    fingerprint = "numbers"
    folder = None

    def embed(self, sentences):
        rows = []
        for sentence in sentences:
            seed = [int(word) for word in sentence.split() if word.isdecimal()]
            rows.append(np.random.default_rng(seed).standard_normal(WIDTH, dtype=np.float32))
        return np.stack(rows)


def ids_of(batch: int) -> list[str]:
    return [f"{batch}-{number}" for number in range(BATCH)]


def texts_of(batch: int, version: int) -> list[str]:
    return [f"document {batch} {number} version {version}" for number in range(BATCH)]


def versions_in(folder: Path) -> dict[int, int]:
    """Open an index and return the version of each of its batches, after checking all texts."""
    index = CorpusIndex.load(folder)
    index._encode = Encoder().embed
    texts = {}
    alive = set(index.ids)
    stored = index._stored
    rows = np.setdiff1d(np.arange(index.num_rows), stored.deleted)
    names = stored.ids(rows)
    for row, (_, text) in stored.sentences(rows).items():
        texts[names[row]] = text
    assert set(texts) == alive
    versions = {}
    for batch in {int(name.partition("-")[0]) for name in alive}:
        version = int(texts[ids_of(batch)[0]].split()[-1])
        assert [texts[name] for name in ids_of(batch)] == texts_of(batch, version)
        versions[batch] = version
    assert len(texts) == BATCH * len(versions)
    # The vectors are those of the texts.
    for name in sorted(texts)[:: max(1, len(texts) // 3)]:
        assert index.search(texts[name], k=1)[0].text == texts[name]
    return versions


def read(folder: Path, stop, results) -> None:
    """Read an index until the event `stop`."""
    count = 0
    problems = []
    while not stop.is_set():
        try:
            versions_in(folder)
            count += 1
        except Exception as error:
            problems.append(repr(error))
    results.put((count, problems))


def edit(folder: Path, name: str, batch: int, version: int) -> None:
    """Edit an index, which may be killed meanwhile."""
    index = CorpusIndex.load(folder)
    index._encode = Encoder().embed
    if name == "add":
        index.add(texts_of(batch, version), ids_of(batch))
    elif name == "update":
        index.update(ids_of(batch), texts_of(batch, version))
    elif name == "delete":
        index.delete(ids_of(batch))
    else:
        index.compact()


def after(versions: dict[int, int], name: str, batch: int, version: int) -> dict[int, int]:
    """Return the versions after an edit."""
    versions = dict(versions)
    if name in ("add", "update"):
        versions[batch] = version
    elif name == "delete":
        del versions[batch]
    return versions


def kill_edits(folder: Path, kills: int, readers: int, seed: int = 1) -> dict[str, object]:
    """Kill that many edits, and return what happened."""
    draws = random.Random(seed)
    sentences = []
    ids = []
    for batch in range(BATCHES):
        sentences += texts_of(batch, 0)
        ids += ids_of(batch)
    CorpusIndex.build(folder, sentences, Encoder(), ids=ids)
    versions = dict.fromkeys(range(BATCHES), 0)
    context = multiprocessing.get_context("fork")
    stop = context.Event()
    results = context.Queue()
    processes = [context.Process(target=read, args=(folder, stop, results)) for _ in range(readers)]
    for process in processes:
        process.start()
    outcomes: Counter[str] = Counter()
    # Seconds that the last edit of each kind took that was not killed; the first one never is.
    seconds: dict[str, float] = {}
    killed = 0
    version = 0
    try:
        while killed < kills:
            version += 1
            name = draws.choice(EDITS)
            if name in ("update", "delete"):
                candidates = sorted(versions)
            else:
                candidates = sorted(set(range(2 * BATCHES)) - versions.keys())
            batch = draws.choice(candidates)
            writer = context.Process(target=edit, args=(folder, name, batch, version))
            start = time.perf_counter()
            writer.start()
            if name in seconds:
                writer.join(draws.uniform(0, 1.3 * seconds[name]))
            else:
                writer.join()
            if writer.exitcode is None:
                os.kill(writer.pid, signal.SIGKILL)
            writer.join()
            if writer.exitcode == 0:
                seconds[name] = time.perf_counter() - start
            else:
                assert writer.exitcode == -signal.SIGKILL, writer.exitcode
                killed += 1
            now = versions_in(folder)
            expected = after(versions, name, batch, version)
            assert now in (versions, expected), f"{name}: neither the old nor the new state"
            assert writer.exitcode != 0 or now == expected, f"{name}: returned and is lost"
            outcome = "finished" if writer.exitcode == 0 else "killed"
            is_visible = now == expected and name != "compact"
            outcomes[f"{name}: {outcome}{', visible' if is_visible else ''}"] += 1
            versions = now
    finally:
        stop.set()
        reads = 0
        problems: list[str] = []
        for _ in processes:
            count, reader_problems = results.get()
            reads += count
            problems += reader_problems
        for process in processes:
            process.join()
    assert not problems, problems[:3]
    return {"kills": killed, "reads": reads, **dict(sorted(outcomes.items()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    print(json.dumps(kill_edits(args.folder / "index", args.kills, args.readers, args.seed)))


if __name__ == "__main__":
    sys.exit(main())

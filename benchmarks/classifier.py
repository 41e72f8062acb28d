"""Seconds of MLDoc: five classifiers on 1,000 documents, 1,000 for dev, 4,000 for test, embeddings 1,024 wide.

python benchmarks/classifier.py --output benchmarks/results/classifier.json
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from machine import machine

from fairseq_lxsr.evaluation.classifier import train_classifiers
from fairseq_lxsr.evaluation.protocols.documents import DOCUMENT_CLASSIFIERS

CLASSES = 4
PARTS = {"train": 1, "dev": 1, "test": 4}  # times --documents


def documents(width: int, count: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Vectors around one centre a class, hard enough that training does not end early."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLASSES, width))
    parts = {}
    for name, times in PARTS.items():
        labels = rng.integers(0, CLASSES, times * count)
        noise = 6 * rng.standard_normal((len(labels), width))
        parts[name] = ((centres[labels] + noise).astype(np.float32), labels)
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024, help="of the embeddings (default: 1024)")
    parser.add_argument("--documents", type=int, default=1000, help="to train on (default: 1000)")
    parser.add_argument("--repeats", type=int, default=3, help="default: 3")
    parser.add_argument("--output", type=Path, help="write the results here as JSON")
    args = parser.parse_args()
    parts = documents(args.width, args.documents)
    results: dict[str, object] = {
        "machine": machine(),
        "sizes": {name: len(labels) for name, (_, labels) in parts.items()},
        "width": args.width,
    }
    for protocol, presets in DOCUMENT_CLASSIFIERS.items():
        for name, config in presets.items():
            seconds, accuracy = [], 0.0
            for _ in range(args.repeats):
                start = time.perf_counter()
                model = train_classifiers(config, *parts["train"], *parts["dev"], CLASSES)
                accuracy = float((model.predict(parts["test"][0]) == parts["test"][1]).mean())
                seconds.append(time.perf_counter() - start)
            results[f"{protocol}, {name}"] = {"seconds": seconds, "accuracy": accuracy}
            print(f"{protocol:8}{name:8}{min(seconds):6.1f} to {max(seconds):.1f} s, accuracy {accuracy:.3f}")
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()

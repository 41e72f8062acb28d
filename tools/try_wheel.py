"""Encode with the installed package, and search an index: what a wheel must do on every system."""

import tempfile
from pathlib import Path

import fairseq_lxsr
from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.search import CorpusIndex

NOTES = ("Où est la gare ?", "Es regnet.", "El perro duerme.")


def main() -> None:
    encoder = SentenceEncoder.from_pretrained("lxsr-static")
    print(f"fairseq-lxsr {fairseq_lxsr.__version__}")
    similarities = encoder.similarity(
        encoder.encode("Where is the station?"), encoder.encode(list(NOTES))
    )
    assert similarities.argmax() == 0, similarities
    assert similarities.max() > 0.8, similarities
    with tempfile.TemporaryDirectory() as folder:
        CorpusIndex.build(Path(folder, "notes"), NOTES, encoder)
        (hit,) = CorpusIndex.load(Path(folder, "notes")).search("The dog is asleep.", k=1)
        print(hit)
        assert hit.sentence == NOTES[2]


if __name__ == "__main__":
    main()

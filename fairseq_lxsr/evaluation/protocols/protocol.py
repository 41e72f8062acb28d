"""What every protocol of `lxsr eval` is."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairseq_lxsr.embeddings import Encoder
    from fairseq_lxsr.evaluation.score import Score


@dataclass(frozen=True)
class Plan:
    """A protocol with its options checked and its text found.

    Args:
        measure: an encoder to scores, some at a time, as they are measured.
        texts: files that are read.
        outputs: files that are written beside the scores.
    """

    measure: "Callable[[Encoder], Iterable[list[Score]]]"
    texts: Sequence[str | Path] = ()
    outputs: Sequence[str | Path] = ()


class Protocol:
    """One way to score an encoder; sub-classes set `name`, as `lxsr eval NAME`, and `help`, one line.

    A module of a protocol imports numpy, torch and what they bring inside `prepare` and not at its top: the command
    line imports every one of them to show its help.
    """

    name = ""
    help = ""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of this protocol."""
        raise NotImplementedError

    def prepare(self, args: argparse.Namespace) -> Plan:
        """Check the options and find the text, before the encoder is loaded.

        Raises: InputError for options that do not go together and for text that is not there.
        """
        raise NotImplementedError

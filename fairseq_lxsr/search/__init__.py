"""Search and mining over text files: encoders and `retrieval`, put together so that work is not lost."""

from fairseq_lxsr.search.bitext import Mining, Side, mine_files
from fairseq_lxsr.search.corpus_index import CorpusIndex, Hit

__all__ = ["CorpusIndex", "Hit", "Mining", "Side", "mine_files"]

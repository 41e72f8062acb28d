"""Title classification across languages."""

from fairseq_lxsr.evaluation.protocols._documents import DocumentClassification


class Titles(DocumentClassification):
    """See `evaluation.documents`."""

    name, help = "titles", "title classification across languages"


PROTOCOL = Titles()

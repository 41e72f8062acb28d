"""Document classification across languages (Schwenk and Li 2018)."""

from fairseq_lxsr.evaluation.protocols._documents import DocumentClassification


class MLDoc(DocumentClassification):
    """See `evaluation.documents`."""

    name, help = "mldoc", "document classification across languages"


PROTOCOL = MLDoc()

"""Writes pairs as a translation memory (TMX 1.4)."""

import re
from xml.sax.saxutils import escape, quoteattr

from fairseq_lxsr import __version__

TMX_END = "</body>\n</tmx>\n"
# Type of the property of a unit that contains its score.
SCORE_TYPE = "x-lxsr-score"
# Characters that XML 1.0 forbids.
FORBIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def tmx_head(source_language: str) -> str:
    """Return the start of a file, up to the first unit."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<tmx version="1.4">\n'
        f'<header creationtool="fairseq-lxsr" creationtoolversion={quoteattr(__version__)} '
        f'segtype="sentence" o-tmf="fairseq-lxsr" adminlang="en" '
        f'srclang={quoteattr(source_language)} datatype="plaintext"/>\n<body>\n'
    )


def tmx_unit(score: float, texts: tuple[str, str], languages: tuple[str, str]) -> str:
    """Return a unit with its score. Characters that XML forbids are replaced by U+FFFD."""
    parts = [f'<tu><prop type="{SCORE_TYPE}">{score:.4f}</prop>']
    for text, language in zip(texts, languages, strict=True):
        segment = escape(FORBIDDEN.sub("\ufffd", text))
        parts.append(f"<tuv xml:lang={quoteattr(language)}><seg>{segment}</seg></tuv>")
    return "".join([*parts, "</tu>\n"])

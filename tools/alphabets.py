"""Writes fairseq_lxsr/preparation/alphabets.json from Unicode's CLDR: python tools/alphabets.py
CLDR/main VERSION

CLDR/main is that folder of the package cldr-misc-full. Letters and marks of `exemplarCharacters`
and `auxiliary` (those of loan words), both cases. Chinese, Japanese and Korean get the blocks of
their scripts: CLDR lists common ones only.
"""

import json
import re
import sys
import unicodedata
from pathlib import Path

LANGUAGES = (
    "af ar az be bg bn bs ca cs cy da de el en eo es et eu fa fi fr ga gl gu he hi hr hu hy id is it ja ka kk km kn ko "
    "lt lv mk ml mr ms mt my nb ne nl pa pl pt ro ru si sk sl sq sr sv sw ta te th tl tr uk ur uz vi zh"
)
CLDR_NAMES = {"nb": "no", "tl": "fil"}
HAN = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
SCRIPTS = {
    "zh": HAN,
    "ja": HAN + "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f",
    "ko": HAN + "\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3",
}
ITEM = re.compile(r"\{[^}]*\}|\\u[0-9A-Fa-f]{4}|\\.|[^\s]")


def characters(unicode_set: str) -> set[str]:
    """Of a CLDR set such as `[a-c {ch} \\- é]`."""
    items = [
        re.sub(r"\\u(....)", lambda m: chr(int(m[1], 16)), item)
        for item in ITEM.findall(unicode_set[1:-1])
    ]
    found: set[str] = set()
    for index, item in enumerate(items):
        if item == "-" and 0 < index < len(items) - 1:
            found.update(map(chr, range(ord(items[index - 1][-1]), ord(items[index + 1][-1]) + 1)))
        else:
            found.update(item.strip("{}") if len(item) > 2 else item[-1])
    return found


def alphabet(folder: Path, language: str) -> str:
    text = (folder / CLDR_NAMES.get(language, language) / "characters.json").read_text(
        encoding="utf-8"
    )
    (entry,) = json.loads(text)["main"].values()
    found = characters(entry["characters"]["exemplarCharacters"]) | characters(
        entry["characters"]["auxiliary"]
    )
    cased = {
        form
        for letter in found
        for form in (letter, letter.upper(), letter.lower(), letter.title())
    }
    letters = {c for c in "".join(cased) if unicodedata.category(c)[0] in "LM"}
    if language in SCRIPTS:
        letters = {c for c in letters if ord(c) < 0x3000}
    return "".join(sorted(letters)) + SCRIPTS.get(language, "")


def main() -> None:
    folder, version = Path(sys.argv[1]), sys.argv[2]
    record = {
        "source": f"Unicode CLDR {version}, exemplarCharacters and auxiliary; Unicode License v3",
        "alphabets": {language: alphabet(folder, language) for language in LANGUAGES.split()},
    }
    output = Path(__file__).parent.parent / "fairseq_lxsr" / "preparation" / "alphabets.json"
    output.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

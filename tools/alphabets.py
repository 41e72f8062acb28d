"""Write fairseq_lxsr/preparation/alphabets.json from Unicode's CLDR.

python tools/alphabets.py CLDR/main VERSION

CLDR/main is that folder of the package cldr-misc-full. An alphabet has the letters and marks of
`exemplarCharacters` and of `auxiliary` (those of loan words), in both cases. Chinese, Japanese and
"""

import json
import re
import sys
import unicodedata
from pathlib import Path

OUTPUT = Path(__file__).parent.parent / "fairseq_lxsr" / "preparation" / "alphabets.json"
LANGUAGES = (
    "af ar az be bg bn bs ca cs cy da de el en eo es et eu fa fi fr ga gl gu he hi hr hu hy id is"
    " it ja ka kk km kn ko lt lv mk ml mr ms mt my nb ne nl pa pl pt ro ru si sk sl sq sr sv sw ta"
    " te th tl tr uk ur uz vi zh"
)
# Languages that have another code in CLDR.
CLDR_NAMES = {"nb": "no", "tl": "fil"}
HAN = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
SCRIPTS = {
    "zh": HAN,
    "ja": HAN + "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f",
    "ko": HAN + "\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3",
}
# East Asian scripts are in blocks above this code point.
FIRST_EAST_ASIAN = 0x3000
ITEM = re.compile(r"\{[^}]*\}|\\u[0-9A-Fa-f]{4}|\\.|[^\s]")
ESCAPE = re.compile(r"\\u(....)")


def characters(unicode_set: str) -> set[str]:
    """Return the characters of a CLDR set, such as `[a-c {ch} \\- é]`."""
    items = []
    for item in ITEM.findall(unicode_set[1:-1]):
        items.append(ESCAPE.sub(lambda match: chr(int(match[1], 16)), item))
    members: set[str] = set()
    for index, item in enumerate(items):
        if item == "-" and 0 < index < len(items) - 1:
            first = items[index - 1][-1]
            last = items[index + 1][-1]
            members.update(map(chr, range(ord(first), ord(last) + 1)))
        elif len(item) > 2:
            members.update(item.strip("{}"))
        else:
            # A backslash may precede the character.
            members.add(item[-1])
    return members


def alphabet(folder: Path, language: str) -> str:
    """Return the alphabet of a language, as the content of a regular expression character class."""
    path = folder / CLDR_NAMES.get(language, language) / "characters.json"
    (entry,) = json.loads(path.read_text(encoding="utf-8"))["main"].values()
    sets = entry["characters"]
    members = characters(sets["exemplarCharacters"]) | characters(sets["auxiliary"])
    cased = ""
    for member in members:
        cased += member + member.upper() + member.lower() + member.title()
    letters = {letter for letter in cased if unicodedata.category(letter)[0] in "LM"}
    if language in SCRIPTS:
        letters = {letter for letter in letters if ord(letter) < FIRST_EAST_ASIAN}
    return "".join(sorted(letters)) + SCRIPTS.get(language, "")


def write_alphabets(folder: Path, version: str, output: Path) -> None:
    """Write the alphabets of all languages."""
    record = {
        "source": f"Unicode CLDR {version}, exemplarCharacters and auxiliary; Unicode License v3",
        "alphabets": {language: alphabet(folder, language) for language in LANGUAGES.split()},
    }
    output.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_alphabets(Path(sys.argv[1]), sys.argv[2], OUTPUT)

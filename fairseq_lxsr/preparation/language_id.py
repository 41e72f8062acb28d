"""Checks the language of a sentence with a fastText model, py3langid or stop words."""

import importlib.util
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.options import FileName
from fairseq_lxsr.text.common_words import COMMON_WORDS
from fairseq_lxsr.text.languages import best_code, is_same_language, parse_tag

# Takes a sentence, its expected language and the other language of the pair; returns whether the
# sentence is in the expected language.
LanguageCheck = Callable[[str, str, str], bool]
METHOD = FileName(description="one of stopwords, py3langid, FILE of a fastText model")


@cache
def _words(language: str) -> frozenset[str]:
    return frozenset(COMMON_WORDS[best_code(language, COMMON_WORDS) or language].split())


def by_stop_words(text: str, language: str, second_language: str) -> bool:
    """Return whether a sentence contains at least as many stop words of its language as of another.

    Args:
        text: sentence to check.
        language: expected language of the sentence.
        second_language: other language of the pair.
    """
    words = text.lower().split()
    stop_words = _words(language)
    second_stop_words = _words(second_language)
    count = sum(word in stop_words for word in words)
    return count >= sum(word in second_stop_words for word in words)


def _by_py3langid(text: str, language: str, second_language: str) -> bool:
    import py3langid

    return _is_label_of(py3langid.classify(text)[0], language)


def _is_label_of(label: str, language: str) -> bool:
    """Return whether a detector's label matches a language; Norwegian may have only one label."""
    return is_same_language(label, language) or (
        label == "no" and parse_tag(language).language == "nn"
    )


@cache
def _fasttext(path: str):
    import fasttext

    return fasttext.load_model(path)


def _by_fasttext(text: str, language: str, second_language: str, path: str) -> bool:
    label = _fasttext(path).predict(text)[0][0].removeprefix("__label__")
    return _is_label_of(label, language)


def language_check(method: str, *languages: str) -> LanguageCheck:
    """Return a function that checks whether a sentence is in its expected language.

        is_in = language_check("stopwords", "en", "fr")
        is_in("the house of the king", "en", "fr")

    Args:
        method: `stopwords`, `py3langid`, or the path of a fastText model.
        languages: languages that must be supported.

    Raises:
        InputError: if the method does not support a language, or its package or model is missing.
    """
    if method == "stopwords":
        _check_stop_words(languages)
        return by_stop_words
    if method == "py3langid":
        _check_package("py3langid", "py3langid")
        return _by_py3langid
    _check_fasttext(method)
    return partial(_by_fasttext, path=method)


def _check_stop_words(languages: Sequence[str]) -> None:
    unknown = [language for language in languages if best_code(language, COMMON_WORDS) is None]
    if unknown:
        raise InputError(
            f"filter 'language': no stop words for {', '.join(unknown)}; supported languages "
            f"are {', '.join(COMMON_WORDS)}: choose another method with --filters "
            "language:method=py3langid or language:method=FILE (a fastText model), or omit "
            "the filter for this pair"
        )


def _check_fasttext(path: str) -> None:
    if not Path(path).is_file():
        raise InputError(f"language identification {path!r}: no such file; expected {METHOD}")
    # The package `fasttext` does not work with numpy 2.
    _check_package("fasttext", "fasttext-predict")
    try:
        _fasttext(path)
    except ValueError:
        raise InputError(f"{path}: not a fastText model; use a model such as lid.176.bin") from None


def _check_package(module: str, package: str) -> None:
    """Raise `InputError` if a module is not installed. `package` is its name for pip."""
    if importlib.util.find_spec(module) is None:
        raise InputError(
            f"language identification requires {package}, which is not installed: "
            f"pip install {package}"
        )

"""The model in the package knows its nine languages; its size and files are checked in test_find.py."""

import pytest

from fairseq_lxsr import SentenceEncoder
from fairseq_lxsr.encoder.find import model_names

NAME = "lxsr-nine"
SENTENCES = {
    "en": ["The meeting begins at nine.", "Where can I buy a ticket?", "It rained all day yesterday."],
    "fr": ["La réunion commence à neuf heures.", "Où puis-je acheter un billet ?", "Hier, il a plu toute la journée."],
    "de": [
        "Die Sitzung beginnt um neun Uhr.",
        "Wo kann ich eine Karte kaufen?",
        "Gestern hat es den ganzen Tag geregnet.",
    ],
    "es": ["La reunión empieza a las nueve.", "¿Dónde puedo comprar un billete?", "Ayer llovió todo el día."],
    "it": ["La riunione comincia alle nove.", "Dove posso comprare un biglietto?", "Ieri è piovuto tutto il giorno."],
    "pt": ["A reunião começa às nove.", "Onde posso comprar um bilhete?", "Ontem choveu o dia inteiro."],
    "ru": ["Встреча начинается в девять.", "Где можно купить билет?", "Вчера весь день шёл дождь."],
    "zh": ["会议九点开始。", "我在哪里可以买到票?", "昨天下了一整天的雨。"],
    "ja": ["会議は九時に始まります。", "切符はどこで買えますか。", "昨日は一日中雨が降った。"],
}


@pytest.fixture(scope="module")
def encoder():
    return SentenceEncoder.from_pretrained(NAME)


def test_its_name_is_known():
    assert NAME in model_names()


def test_a_translation_is_nearest_in_every_pair_of_languages(encoder):
    vectors = {language: encoder.encode(lines, normalize=True) for language, lines in SENTENCES.items()}
    wrong = [
        (source, target)
        for source in vectors
        for target in vectors
        if ((vectors[source] @ vectors[target].T).argmax(axis=1) != range(3)).any()
    ]
    assert not wrong

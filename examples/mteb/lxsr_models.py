"""The description of lxsr-static for mteb, as a pull request adds it to mteb's own models.

Copy the file to mteb/models/model_implementations/ once the model is on a hub. Fill in ORG, the
revision, the date and the addresses.
"""

from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.models.sentence_transformer_wrapper import SentenceTransformerEncoderWrapper

LANGUAGES = [
    "ara-Arab",
    "bul-Cyrl",
    "cat-Latn",
    "ces-Latn",
    "dan-Latn",
    "deu-Latn",
    "ell-Grek",
    "eng-Latn",
    "est-Latn",
    "fas-Arab",
    "fin-Latn",
    "fra-Latn",
    "heb-Hebr",
    "hin-Deva",
    "hrv-Latn",
    "hun-Latn",
    "ind-Latn",
    "isl-Latn",
    "ita-Latn",
    "jpn-Jpan",
    "kor-Hang",
    "lav-Latn",
    "lit-Latn",
    "nld-Latn",
    "nob-Latn",
    "pol-Latn",
    "por-Latn",
    "ron-Latn",
    "rus-Cyrl",
    "slk-Latn",
    "slv-Latn",
    "spa-Latn",
    "srp-Cyrl",
    "swe-Latn",
    "tha-Thai",
    "tur-Latn",
    "ukr-Cyrl",
    "vie-Latn",
    "zho-Hans",
]
# Tasks of mteb whose sources have training text in the model; test parts are left out of it.
TRAINING_DATASETS = {
    "MIRACLRetrieval",
    "MIRACLRetrievalHardNegatives",
    "MassiveIntentClassification",
    "MassiveScenarioClassification",
    "Tatoeba",
}

lxsr_static = ModelMeta(
    loader=SentenceTransformerEncoderWrapper,
    name="ORG/lxsr-static",
    model_type=["dense"],
    languages=LANGUAGES,
    open_weights=True,
    revision="0000000000000000000000000000000000000000",
    release_date="2026-11-28",
    n_parameters=51_734_528,
    n_embedding_parameters=51_734_528,
    memory_usage_mb=197,
    max_tokens=None,
    embed_dim=[256, 128, 64],
    license="https://repository.invalid/fairseq-lxsr/blob/main/fairseq_lxsr/pretrained/lxsr-static/README.md",
    similarity_fn_name=ScoringFunction.COSINE,
    framework=["Sentence Transformers", "NumPy", "ONNX", "safetensors"],
    reference="https://huggingface.co/ORG/lxsr-static",
    use_instructions=False,
    training_datasets=TRAINING_DATASETS,
    public_training_code="https://repository.invalid/fairseq-lxsr/tree/main/examples/pretrained",
    public_training_data="https://repository.invalid/fairseq-lxsr/blob/main/examples/pretrained/sources.json",
)

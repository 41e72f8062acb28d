"""Packaging; `make install` also sets up fairseq for training, see tools/install.py."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "([^"]+)"', (HERE / "fairseq_lxsr/__init__.py").read_text(encoding="utf-8"))[1]

setup(
    name="fairseq-lxsr",
    version=VERSION,
    description="Lightweight cross-lingual sentence representations: train with fairseq, use without it",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.11",
    packages=find_packages(include=["fairseq_lxsr*"]),
    install_requires=["torch>=2.6", "numpy>=1.26", "sentencepiece>=0.2", "faiss-cpu>=1.8", "safetensors>=0.4", "tqdm"],
    extras_require={
        # what fairseq needs; fairseq itself is installed with --no-deps afterwards, because it names torchaudio,
        # which only its speech code imports and which does not load beside a CPU build of torch
        "train": [
            "bitarray",
            "cffi",
            "cython",
            "hydra-core==1.3.2",
            "omegaconf==2.3.0",
            "packaging",
            "pyyaml",  # `lxsr train`
            "regex",
            "sacrebleu>=1.4.12",
            "scikit-learn",
        ],
        # folders of sentence-transformers or Hugging Face: measured by `lxsr eval`, written by `lxsr export`
        "st": ["sentence-transformers>=6", "protobuf"],
        # `lxsr export onnx`
        "onnx": ["onnx", "onnxruntime", "onnxscript", "protobuf", "tokenizers"],
        # `lxsr prepare CONFIG.yaml`, .tmx, .po
        "prepare": ["defusedxml", "polib", "pyyaml"],
        # `lxsr train-context` on what WikiExtractor writes
        "documents": ["sentencex"],
        # benchmarks/: plots, and what users would train instead
        "benchmarks": ["accelerate", "datasets", "matplotlib", "pyyaml", "sentence-transformers>=6"],
        # reading .zst
        "zst": ["backports.zstd; python_version < '3.14'"],
        # `lxsr embed --format parquet`
        "parquet": ["pyarrow"],
        # fairseq_lxsr.export.MtebEncoder
        "mteb": ["mteb>=2"],
        # `lxsr report`
        "report": ["plotly>=6", "scikit-learn"],
        "dev": [
            "backports.zstd",
            "defusedxml",
            "hypothesis",
            "mkdocs-material",
            "mkdocstrings[python]",
            "mteb",
            "mypy",
            "onnx",
            "onnxruntime",
            "onnxscript",
            "playwright",
            "plotly",
            "polib",
            "protobuf",
            "py3langid",
            "pyarrow",
            "pytest",
            "pytest-xdist",
            "pyyaml",
            "ruff",
            "scikit-learn",
            "sentence-transformers",
            "sentencex",
            "tensorboardX",
        ],
    },
    package_data={
        "fairseq_lxsr.evaluation": ["published.json"],
        "fairseq_lxsr.preparation": ["alphabets.json", "sources.json"],
        "fairseq_lxsr.recipes": ["*.yaml"],
    },
    entry_points={"console_scripts": ["lxsr = fairseq_lxsr.cli.main:main"]},
    classifiers=[
        "License :: OSI Approved :: MIT License",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Text Processing :: Linguistic",
    ],
)

"""Everything about the package stands in pyproject.toml; `make install` also sets up fairseq, see tools/install.py."""

from setuptools import setup

setup()

"""Everything about the package stands in pyproject.toml, but the links that need an address of the
repository.

`REPO_URL=https://... python -m build` writes them: the pages that the README names, and the
project's addresses. `make install` also sets up fairseq, see tools/install.py.
"""

import os
import re
from pathlib import Path

from setuptools import setup

address = os.environ.get("REPO_URL", "").rstrip("/")
readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
if address:
    readme = re.sub(r"\]\((?!https?:|#)", f"]({address}/blob/main/", readme)
urls = (
    {"Repository": address, "Documentation": f"{address}/blob/main/docs/index.md"}
    if address
    else {}
)
if address:
    urls |= {"Changelog": f"{address}/blob/main/CHANGELOG.md", "Issues": f"{address}/issues"}
setup(long_description=readme, long_description_content_type="text/markdown", project_urls=urls)

"""Everything about the package stands in pyproject.toml, but the text for an index.

That is the README, with complete addresses for links to files of the repository.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
address = project["urls"]["Repository"]
readme = (ROOT / "README.md").read_text(encoding="utf-8")
readme = re.sub(r"\]\((?!https?:|#)", f"]({address}/blob/main/", readme)
setup(long_description=readme, long_description_content_type="text/markdown")

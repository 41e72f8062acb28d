"""Everything about the package stands in pyproject.toml, but the text for an index.

That is the README, with complete addresses for links to files of the repository and for pictures,
and with the command that installs from an index.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
address = project["urls"]["Repository"]
readme = (ROOT / "README.md").read_text(encoding="utf-8")
readme = readme.replace("Type in the folder of this repository:", "Type:")
readme = readme.replace("\npip install .\n", f"\npip install {project['name']}\n")
# Under /blob/ is a page that shows the file, and under /raw/ the file itself.
readme = re.sub(r"(!\[[^\]]*\]\()(?!https?:)", rf"\g<1>{address}/raw/main/", readme)
readme = re.sub(r"\]\((?!https?:|#)", f"]({address}/blob/main/", readme)
setup(long_description=readme, long_description_content_type="text/markdown")

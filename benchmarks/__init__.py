"""The benchmarks; README.md lists which script answers which question.

Scripts are run from the root of the project: `python -m benchmarks.FOLDER.NAME`.
"""

from pathlib import Path

ROOT = Path(__file__).parent.parent

"""docs/performance.md and the data it is made of, for the scripts that record timings."""

import csv
import pathlib
import re

import matplotlib

matplotlib.use("svg")

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "docs/data"
PAGE = ROOT / "docs/performance.md"


def read(name):
    with open(DATA / name, newline="") as file:
        return list(csv.DictReader(file))


def fill(texts):
    """Puts each text between <!-- name --> and <!-- /name --> of the page."""
    page = PAGE.read_text()
    for name, text in texts:
        page = re.sub(f"<!-- {name} -->.*?<!-- /{name} -->", f"<!-- {name} -->\n{text}\n<!-- /{name} -->", page,
                      flags=re.DOTALL)
    PAGE.write_text(page)

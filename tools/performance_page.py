"""The pages of timings and the data they are made of, for the scripts that record them."""

import csv
import pathlib
import re

import matplotlib

matplotlib.use("svg")

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "docs/data"


def read(name):
    with open(DATA / name, newline="") as file:
        return list(csv.DictReader(file))


def fill(texts, name_of_page="performance.md"):
    """Puts each text between <!-- name --> and <!-- /name --> of a page."""
    path = ROOT / "docs" / name_of_page
    page = path.read_text()
    for name, text in texts:
        page = re.sub(f"<!-- {name} -->.*?<!-- /{name} -->", f"<!-- {name} -->\n{text}\n<!-- /{name} -->", page,
                      flags=re.DOTALL)
    path.write_text(page)

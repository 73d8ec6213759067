"""The Python blocks of the documentation run.

A block uses what `given` has. One that cannot run here says why in the line above it: <!-- not run: ... -->, and one of
another library is marked <!-- not ours -->.
"""

import re
from pathlib import Path

import numpy as np
import pytest

import thalweg
from thalweg import ops

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```python\n(?P<code>.*?)^```$", re.M | re.S)


def blocks():
    for page in sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")]):
        text = page.read_text()
        for block in BLOCK.finditer(text):
            if not (block["mark"] or "").startswith(("not ours", "not run: ")):
                line = text.count("\n", 0, block.start("code")) + 1
                yield pytest.param(block["code"], id=f"{page.relative_to(ROOT)}:{line}")


def given():
    random = np.random.default_rng()
    T, HK, HV, K, V = 70, 2, 4, 64, 32
    return {
        "np": np, "ops": ops, "thalweg": thalweg, "HV": HV, "V": V, "K": K,
        "q": random.standard_normal((1, T, HK, K), np.float32),
        "k": random.standard_normal((1, T, HK, K), np.float32),
        "v": random.standard_normal((1, T, HV, V), np.float32),
        "g": -random.random((1, T, HV), np.float32),
        "beta": random.random((1, T, HV), np.float32),
        "state": np.zeros((1, HV, K, V), np.float32),  # as FLA lays it out
    }


@pytest.mark.parametrize("code", list(blocks()))
def test_block(code, monkeypatch):
    monkeypatch.chdir(ROOT)  # models/ is named from there
    names = given()
    exec(compile(code, "<documentation>", "exec"), names)
    if "o" in names:
        assert np.isfinite(np.asarray(names["o"])).all()


def test_there_are_blocks():
    assert len(list(blocks())) >= 5

"""The Python examples run."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(name, *arguments):
    command = [sys.executable, ROOT / "examples" / name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_generate():
    prompt = "Anna put the red ball in the kitchen. Where is the red ball?"
    assert "kitchen" in run("generate.py", ROOT / "models" / "story-q4_k.gguf", prompt)


def test_operations():
    assert "relative difference" in run("operations.py")


def test_patch_transformers():
    if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        pytest.skip("no torch and transformers")
    assert "the same 16 tokens" in run("patch_transformers.py")

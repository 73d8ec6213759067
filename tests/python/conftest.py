"""What the tests of `thalweg serve` share."""

import contextlib
import os
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running_server(*options):
    """Runs THALWEG_BIN with `serve`; yields its address. Skips the test without a program."""
    program = os.environ.get("THALWEG_BIN")
    if not program:
        pytest.skip("neither THALWEG_URL nor THALWEG_BIN")
    model = os.environ.get("THALWEG_MODEL", ROOT / "models" / "story-q4_k.gguf")
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [program, "serve", model, "--port", str(port), "--log", "off", *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            for _ in range(300):
                assert server.poll() is None, "the server ended"
                with contextlib.suppress(OSError), urllib.request.urlopen(url + "/health", timeout=5):
                    break
                time.sleep(0.2)
            yield url
        finally:
            server.terminate()


@pytest.fixture(scope="session")
def served():
    """The address of a server: THALWEG_URL, or of THALWEG_BIN (a `thalweg` program)."""
    if url := os.environ.get("THALWEG_URL"):
        yield url
        return
    with running_server() as url:
        yield url

#!/usr/bin/env python3
"""Every place that states the version states that of include/thalweg/version.h."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLACES = {
    "pyproject.toml": r'^version = "([^"]+)"',
    "python/thalweg/__init__.py": r'^__version__ = "([^"]+)"',
    "packaging/debian/changelog": r"\A\w+ \(([^-)]+)-\d+\)",
    "CHANGELOG.md": r"^## \[(\d[^]]*)\] - \d{4}-\d\d-\d\d$",
    "examples/rust/thalweg-sys/Cargo.toml": r'^version = "([^"]+)"',
    "docs/install.md": r"thalweg-(\d+\.\d+\.\d+)-cp",
}


def main() -> int:
    header = (ROOT / "include/thalweg/version.h").read_text()
    version = re.search(r'^#define THALWEG_VERSION_STRING "([^"]+)"', header, re.M)[1]
    parts = [re.search(rf"^#define THALWEG_VERSION_{part} (\d+)$", header, re.M)[1] for part in ("MAJOR", "MINOR", "PATCH")]
    wrong = [] if ".".join(parts) == version else [f"version.h: {'.'.join(parts)}, but the text is {version}"]
    for place, pattern in PLACES.items():
        found = re.search(pattern, (ROOT / place).read_text(), re.M)
        if not found or found[1] != version:
            wrong.append(f"{place}: {found[1] if found else 'no version'}, not {version}")
    print("\n".join(wrong) or f"{version} in {len(PLACES) + 1} places")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Lays out the pages that Sphinx builds: stage.py FOLDER

The folder gets the repository's Markdown at its own places, so that links between pages stay as they are. A link to a
header leads to its page in api/, one to another source file to a page in source/ that shows the file, and one to a
folder to its index or to nothing. Pages of operations get a plot of docs/data/bench-cpu.json.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import plots

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LINK = re.compile(r"(!?)\[((?:[^][]|\[[^][]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^( *```.*?^ *```$)", re.M | re.S)
LANGUAGES = {".cc": "cpp", ".h": "cpp", ".cu": "cuda", ".mm": "objective-c", ".metal": "cpp", ".py": "python",
             ".c": "c", ".json": "json", ".sh": "bash", ".rs": "rust", ".swift": "swift", ".toml": "toml"}
INDEXES = {"docs/operations": "docs/operations/index", "docs/notes": "docs/notes/index"}


def repository_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, text=True,
                            capture_output=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


class Site:
    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.files = set(repository_files())
        self.sources: set[str] = set()  # source files that a page links to

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def target(self, page: str, link: str) -> str | None:
        """Where a link of a page leads on the site, from the site's root; None: nowhere."""
        name, _, anchor = link.partition("#")
        path = (ROOT / page).parent.joinpath(name).resolve().relative_to(ROOT).as_posix()
        anchor = f"#{anchor}" if anchor else ""
        if path.endswith((".md", ".svg", ".png")):
            return path + anchor
        if path in INDEXES:
            return INDEXES[path] + ".md"
        if re.fullmatch(r"include/thalweg/\w+\.h", path):
            return f"api/{pathlib.Path(path).stem}.md"
        if path in self.files:
            self.sources.add(path)
            return f"source/{path}.md"
        if (ROOT / path).is_dir():
            return None
        raise SystemExit(f"{page}: no such file: {link}")

    def rewritten(self, page: str, text: str) -> str:
        up = "../" * page.count("/")

        def link(match: re.Match) -> str:
            image, label, target = match.groups()
            label = LINK.sub(link, label)
            if re.match(r"[a-z]+:|#", target):
                return f"{image}[{label}]({target})"
            place = self.target(page, target)
            if place is None:
                return label
            return f"{image}[{label}]({up}{place})"

        parts = FENCE.split(text)
        return "".join(part if i % 2 else LINK.sub(link, part) for i, part in enumerate(parts))

    def stage_pages(self) -> None:
        benchmarks = json.loads((ROOT / "docs/data/bench-cpu.json").read_text())
        for name in sorted(self.files):
            if name.startswith("docs/data/") and name.endswith((".svg", ".png")):
                path = self.folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, path)
            if not name.endswith(".md") or not re.match(r"[A-Z-]+\.md|docs/(?!site/)|models/", name):
                continue
            text = self.rewritten(name, (ROOT / name).read_text())
            if name == "README.md":
                text = text.replace("# Thalweg", "# Overview", 1)
            if name.startswith("docs/operations/"):
                text = self.with_plot(name, text, benchmarks)
            self.write(name, text)

    def with_plot(self, page: str, text: str, benchmarks: dict) -> str:
        operation = pathlib.Path(page).stem
        rows = [row for row in benchmarks["rows"] if row["op"] == operation]
        mark = f"<!-- numbers:{operation} -->"
        if not rows or mark not in text:
            return text
        self.write(f"docs/operations/plots/{operation}.svg", plots.against_floor(operation, rows))
        picture = f"![{operation}: time of each case on the CPU, and its floor](plots/{operation}.svg)"
        return text.replace(mark, f"{picture}\n\n{mark}")

    def stage_indexes(self) -> None:
        readme = (self.folder / "README.md").read_text()
        table = re.search(r"<!-- operations -->\n(.*?)<!-- /operations -->", readme, re.S)[1]
        table = self.rewritten("docs/operations/index.md", table.replace("](docs/operations/", "](./"))
        self.write("docs/operations/index.md",
                   "# Operations\n\nWhat each backend offers, by kernel; a dash means: not yet. Each page has the "
                   "mathematics, layouts, contract, kernels and numbers.\n\n" + table +
                   "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n")
        self.write("docs/notes/index.md", "# Notes\n\nHow kernels came to be what they are: what was tried, expected and "
                   "measured.\n\n```{toctree}\n:glob:\n:titlesonly:\n\n*\n```\n")

    def stage_headers(self) -> None:
        headers = sorted(pathlib.Path(name) for name in self.files if re.fullmatch(r"include/thalweg/\w+\.h", name))
        for header in headers:
            source = header.as_posix()
            self.sources.add(source)
            title = header.name
            self.write(f"api/{header.stem}.md",
                       f"# {title}\n\n[The header itself](../source/{source}.md)\n\n"
                       f"```{{doxygenfile}} {header.name}\n:project: thalweg\n```\n")
        entries = "\n".join(header.stem for header in headers)
        self.write("api/index.md", "# Headers\n\nEvery declaration of the public headers. `thalweg.h` and `thalweg_ranks.h` "
                   "are the C ABI; the others are C++.\n\n```{toctree}\n:titlesonly:\n\n" + entries + "\n```\n")

    def stage_sources(self) -> None:
        for name in self.sources:
            try:
                text = (ROOT / name).read_text()
            except UnicodeDecodeError:
                raise SystemExit(f"a page links to {name}, which is no text") from None
            language = LANGUAGES.get(pathlib.Path(name).suffix, "text")
            if text.startswith("#!") and "bash" in text.partition("\n")[0]:
                language = "bash"
            if len(text) > 300_000:
                text = text[:300_000] + "\n...\n"
            fence = "`" * 5
            self.write(f"source/{name}.md", f"---\norphan: true\nnosearch: true\n---\n# {name}\n\n"
                       f"{fence}{language}\n{text.rstrip()}\n{fence}\n")


def main() -> None:
    site = Site(pathlib.Path(sys.argv[1]))
    site.stage_pages()
    site.stage_indexes()
    site.stage_headers()
    site.stage_sources()
    here = pathlib.Path(__file__).parent
    shutil.copy(here / "conf.py", site.folder)
    shutil.copy(here / "index.md", site.folder)
    shutil.copytree(here / "_static", site.folder / "_static")


if __name__ == "__main__":
    main()

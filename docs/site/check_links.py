#!/usr/bin/env python3
"""Follows every link and picture within a built site, anchors included: check_links.py FOLDER"""

import pathlib
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    def __init__(self, path: pathlib.Path):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def main() -> int:
    root = pathlib.Path(sys.argv[1]).resolve()
    pages = {path: Page(path) for path in root.rglob("*.html")}
    broken, followed = [], 0
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            followed += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.exists():
                broken.append(f"{path.relative_to(root)}: no such file: {link}")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                broken.append(f"{path.relative_to(root)}: no such anchor: {link}")
    print(f"{followed} links on {len(pages)} pages, {len(broken)} broken")
    print("\n".join(broken))
    return 1 if broken or not followed else 0


if __name__ == "__main__":
    sys.exit(main())

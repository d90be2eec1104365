"""Checks a built site: every link inside of it and every anchor is there, and nothing that a page
loads comes from another host.

    python -m docs.extensions.check_site build/docs
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

LOADED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}


class Page(HTMLParser):
    """The anchors of a page, where it links to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note the attributes of a tag."""
        values = {name: value or "" for name, value in attributes}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        is_hint = tag == "link" and values.get("rel") in ("canonical", "next", "prev", "author")
        if LOADED.get(tag) in values and not is_hint:
            self.loaded.append(values[LOADED[tag]])


def problems(site: Path) -> Iterator[str]:
    """What is wrong, one line each."""
    files = [path for path in site.rglob("*.html") if "_static" not in path.parts]
    pages = {path.resolve(): Page(path.read_text()) for path in files}
    for path, page in pages.items():
        where = path.relative_to(site.resolve())
        for target in page.links + page.loaded:
            address, anchor = urldefrag(target)
            if re.match(r"[a-z]+:", address):
                if target in page.loaded and not address.startswith("data:"):
                    yield f"{where} loads {target}"
                continue
            file = (path.parent / unquote(address.split("?")[0])).resolve() if address else path
            if not file.exists():
                yield f"{where}: {target} is not there"
            elif anchor and file in pages and unquote(anchor) not in pages[file].anchors:
                yield f"{where}: {target} has no such anchor"
    for path in site.rglob("*.css"):
        for found in re.findall(r"(?:@import|url\()\s*['\"]?(https?:[^'\")]+)", path.read_text()):
            yield f"{path.relative_to(site)} loads {found}"


def main() -> None:
    """Print the problems; end with 1 if there are any."""
    site = Path(sys.argv[1])
    found = sorted(set(problems(site)))
    count = len([*site.rglob("*.html")])
    print("\n".join(found) or f"{count} pages: all links and anchors are there, all files its own")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()

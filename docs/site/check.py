"""Check a built site: every public name has an entry, and no page loads anything from another host."""

from __future__ import annotations

import re
import sys
import zlib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"
# Attributes and rules with which a browser loads something when it opens a page. Links (href of <a>) load nothing.
LOADS = re.compile(
    r"<(?:script|img|iframe|source|video)[^>]*\ssrc=\"(https?:[^\"]+)|<link[^>]*\shref=\"(https?:[^\"]+)|url\((https?:[^)]+)"
)


def main() -> int:
    """Print what is missing, and return the exit status."""
    inventory = (SITE / "objects.inv").read_bytes().split(b"\n", 4)[4]
    entries = {line.split()[0] for line in zlib.decompress(inventory).decode().splitlines()}
    lines = (ROOT / "tests" / "public_api.txt").read_text().splitlines()
    names = {line.partition("(")[0].partition(" ")[0] for line in lines}
    public = sorted(name for name in names if name.rpartition(".")[0] not in names)  # without members of classes
    problems = [f"{name} has no entry" for name in public if name not in entries]
    for page in SITE.rglob("*.html"):
        urls = {next(filter(None, match)) for match in LOADS.findall(page.read_text())}
        problems += [f"{page.relative_to(SITE)} loads {url}" for url in urls if "canonical" not in url]
    print(*problems, sep="\n", file=sys.stderr)
    print(f"{len(public)} public names have entries" if not problems else f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""usage: links_test.py SOURCE_DIR

Checks that each link of a page to a file or to a heading in this tree has its target."""

import os
import pathlib
import re
import subprocess
import sys

source = pathlib.Path(sys.argv[1])
listed = subprocess.run(["git", "-c", "safe.directory=*", "-C", source, "ls-files", "--cached", "--others",
                         "--exclude-standard", "*.md"], check=True, capture_output=True, text=True).stdout.split()


def prose(page):
    return re.sub(r"^ *```.*?^ *```", "", (source / page).read_text(encoding="utf-8"), flags=re.M | re.S)


def anchor(heading):
    """As renderers of Markdown make it of a heading."""
    words = re.sub(r"\]\([^)]*\)|[`*\[\]]", "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


anchors = {page: {anchor(each) for each in re.findall(r"^#+ (.*)$", prose(page), re.M)} for page in listed}
links = 0
wrong = []
for page in listed:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"\w+:", link):
            continue
        links += 1
        file, _, place = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(page), file)) if file else page
        if not (source / target).exists():
            wrong.append(f"{page}: {link}: there is no {target}")
        elif place and place not in anchors.get(target, {place}):
            wrong.append(f"{page}: {link}: {target} has no heading with that anchor")
print(*wrong, sep="\n")
print(f"{links} links, {len(wrong)} wrong")
sys.exit(1 if wrong or not links else 0)

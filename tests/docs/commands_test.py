#!/usr/bin/env python3
"""usage: commands_test.py SOURCE_DIR: every block of shell commands (```sh) in a page is in commands.txt beside this, which
says who runs it or why nobody does; nothing else is there; and a test that is named is one of CTest's and reads the page."""

import datetime
import pathlib
import re
import subprocess
import sys

source = pathlib.Path(sys.argv[1])
here = pathlib.Path(__file__).resolve().parent
wrong = []


def listed(*patterns):
    files = subprocess.run(["git", "-c", "safe.directory=*", "-C", source, "ls-files", "--cached", "--others",
                            "--exclude-standard", *patterns], check=True, capture_output=True, text=True).stdout.split("\n")
    return [each for each in files if each]


def text(path):
    return (source / path).read_text(encoding="utf-8")


blocks = []  # (page, line, first command)
for page in listed("*.md"):
    for found in re.finditer(r"^ *```sh\n(.*?)^ *```$", text(page), re.M | re.S):
        line = text(page)[:found.start()].count("\n") + 1
        blocks.append((page, line, found[1].split("\n")[0].strip()))
# Blocks of another name are nobody's business here, so none of them may hide commands.
for page in listed("*.md"):
    for name in re.findall(r"^ *```(\w+)$", text(page), re.M):
        if name in ("bash", "shell", "console"):
            wrong.append(f"{page}: a block of commands begins with ```{name}, not ```sh")

ctest = "\n".join(text(each) for each in listed("*CMakeLists.txt"))


def reads(test, page):
    """Whether the test names the page, by its folder and name, or is given it; comments name it in vain."""
    path = pathlib.PurePath(page)
    body = re.sub(r"^ *#.*", "", text(test), flags=re.M)
    tail = "/".join(path.parts[-2:]) if path.parent.name else "../" + page
    if re.search(r"(?<![\w.-])" + re.escape(tail) + r"(?![\w.-])", body) or "}/" + page in ctest:
        return True
    # Its folder is what CTest gives the test.
    given = re.escape(pathlib.PurePath(test).name) + r"\s+\$\{PROJECT_SOURCE_DIR\}/" + re.escape(str(path.parent)) + r"\s"
    return "/" + path.name in body and re.search(given, ctest) is not None


entries = []
for line in (here / "commands.txt").read_text(encoding="utf-8").split("\n"):
    if not line or line.startswith("#"):
        continue
    page, begins, who = (part.strip() for part in line.split(" | "))
    kind, _, what = who.partition(" ")
    entries.append((page, begins))
    if kind not in ("page", "like", "long", "setup") or not what:
        wrong.append(f"commands.txt: '{who}' is not one of page TEST, like TEST, long DATE RESULT: WHY, setup DATE RESULT: WHY")
    elif kind in ("long", "setup"):
        said = re.fullmatch(r"(\d{4}-\d\d-\d\d) (passed|failed): .+|never tried: .+", what)
        try:
            if not said or said[1] and not datetime.date.fromisoformat(said[1]):
                raise ValueError
        except ValueError:
            wrong.append(f"commands.txt: '{who}' does not begin with when it was tried and what came of it, as in "
                         f"'{kind} 2026-11-23 passed: WHY'")
    elif kind in ("page", "like"):
        name = pathlib.PurePath(what).name
        if not (source / what).is_file():
            wrong.append(f"commands.txt: there is no {what}")
            continue
        # Some are named by a loop over their first words.
        if name != "CMakeLists.txt" and name not in ctest and re.sub("^[a-z]+_", "${name}_", name) not in ctest:
            wrong.append(f"commands.txt: {what} is not one of CTest's tests")
        if kind == "page" and not reads(what, page):
            wrong.append(f"commands.txt: {what} does not read {page}")

for page, line, first in blocks:
    matching = [begins for of, begins in entries if of == page and first.startswith(begins)]
    if len(matching) != 1:
        wrong.append(f"{page}:{line}: '{first[:60]}' fits {len(matching)} lines of {here.name}/commands.txt, not one")
for page, begins in entries:
    if not any(page == of and first.startswith(begins) for of, _, first in blocks):
        wrong.append(f"commands.txt: no block of {page} begins with '{begins}'")

print(*wrong, sep="\n")
print(f"{len(blocks)} blocks of commands, {len(wrong)} wrong")
sys.exit(1 if wrong or not blocks else 0)

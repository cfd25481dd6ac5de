#!/usr/bin/env python3
"""usage: plain_english_test.py SOURCE_DIR [FOLDER_OR_FILE...]

Checks the text that users read: pages (*.md), string literals of programs, comments of configuration files, usage texts
of scripts, and messages and descriptions of CMake files. Reports the words and phrases in dialect.txt, sentences of
more than 35 words, lines of pages of more than 100 columns, and a README of more than 1,200 words beside its tables and
code. plain_english_exceptions.txt lists what may stay. With FOLDER_OR_FILE only the texts below these.
"""

import ast
import json
import pathlib
import re
import subprocess
import sys

MOST_WORDS = 35
MOST_COLUMNS = 100
MOST_README_WORDS = 1200

source = pathlib.Path(sys.argv[1]).resolve()
only = tuple(each.rstrip("/") for each in sys.argv[2:])
here = pathlib.Path(__file__).resolve().parent


def entries(name):
    lines = (here / name).read_text(encoding="utf-8").splitlines()
    return [each for each in lines if each and not each.startswith("#")]


dialect = []
for entry in entries("dialect.txt"):
    pattern, _, better = entry.partition(" -> ")
    dialect.append((re.compile(rf"(?<![\w'-])(?:{pattern})(?![\w'-])", re.I), better))
exceptions = [tuple(each.split(" | ", 1)) for each in entries("plain_english_exceptions.txt")]
used = set()


def files():
    listed = subprocess.run(["git", "-c", "safe.directory=*", "-C", source, "ls-files", "--cached", "--others",
                             "--exclude-standard"], check=True, capture_output=True, text=True).stdout.split("\n")
    for name in listed:
        if name and (source / name).is_file() and (not only or any(name == o or name.startswith(o + "/") for o in only)):
            yield name


def sentences(text):
    """The sentences of a paragraph without Markdown's marks."""
    text = re.sub(r"`[^`]*`", "X", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>]*>|[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}", " ", text)
    return re.split(r"(?<=[.!?])[\")]*\s+(?=[\"'(]*[A-Z0-9X{<])|\n\s*\n", text)


def of_page(text):
    """(line, paragraph) of a Markdown page: paragraphs, list items, cells of tables; no code."""
    paragraph, begins, code = [], 0, False
    for number, line in enumerate(text.splitlines() + [""], 1):
        fence = line.lstrip().startswith("```")
        if fence or code or not line.strip() or re.match(r"\s*([-*]|\d+\.) |#|\s*\||<", line):
            if paragraph:
                yield begins, " ".join(paragraph)
            paragraph = []
        code ^= fence
        if fence or code:
            continue
        if line.lstrip().startswith("|"):
            for cell in line.strip().strip("|").split(" | "):
                yield number, cell
        elif line.strip() and not line.startswith("<!--"):
            if not paragraph:
                begins = number
            paragraph.append(re.sub(r"^\s*([-*]|\d+\.) |^#+ ", "", line).strip())


LITERAL = re.compile(r'(?://[^\n]*)|/\*.*?\*/|\'(?:[^\'\\\n]|\\.)\'|(?P<raw>R"(?P<end>\w*)\((?P<body>.*?)\)(?P=end)")'
                     r'|"(?P<plain>(?:[^"\\\n]|\\.)*)"', re.S)


def of_code(text):
    """(line, text) of string literals; neighbours count as one."""
    joined, begins, last = "", 0, 0
    for found in LITERAL.finditer(text):
        body = found["body"] if found["raw"] else found["plain"]
        if body is None:
            continue
        if joined and text[last:found.start()].strip():
            yield begins, joined
            joined = ""
        if not joined:
            begins = text.count("\n", 0, found.start()) + 1
        joined += body.replace("\\n", "\n").replace('\\"', '"') if found["plain"] is not None else body
        last = found.end()
    if joined:
        yield begins, joined


CMAKE_TEXT = re.compile(r'(?:\b(?:message|option)\(\w+|DESCRIPTION|SUMMARY|COMMENT|STRING)((?:\s+"(?:[^"\\]|\\.)*")+)')


def of_cmake(text):
    """(line, text) of messages, options and descriptions of a CMake file."""
    for found in CMAKE_TEXT.finditer(text):
        yield text.count("\n", 0, found.start(1)) + 1, "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', found[1]))


def of_comments(text, mark="#"):
    """(line, paragraph) of comments of a configuration file."""
    paragraph, begins = [], 0
    for number, line in enumerate(text.splitlines() + [""], 1):
        found = re.search(rf"(?:^|\s){mark}+ ?(.*)$", line)
        alone = line.lstrip().startswith(mark)
        if paragraph and (not found or not alone or not found[1].strip()):
            yield begins, " ".join(paragraph)
            paragraph = []
        if found and found[1].strip():
            if not paragraph:
                begins = number
            paragraph.append(found[1].strip())
    

def of_script(text):
    """(line, text) of a script's usage text, which is its first comment, and of quoted strings."""
    lines = text.splitlines()
    number = 1 if lines and lines[0].startswith("#!") else 0
    begins = number + 1
    header = []
    while number < len(lines) and lines[number].startswith("#"):
        text = lines[number].lstrip("# ")
        if text.startswith("-"):  # An option.
            yield begins, " ".join(header)
            begins, header = number + 1, []
        header.append(text)
        number += 1
    yield begins, " ".join(header)
    for number, line in enumerate(lines, 1):
        if re.search(r"\b(echo|printf|say|die|fail|usage)\b", line):
            for found in re.finditer(r'"((?:[^"\\]|\\.)*)"', line):
                yield number, found[1]


def of_python(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def of_json(text):
    def walk(value):
        if isinstance(value, dict):
            for each in value.values():
                yield from walk(each)
        elif isinstance(value, list):
            for each in value:
                yield from walk(each)
        elif isinstance(value, str):
            yield value

    for each in walk(json.loads(text)):
        yield text[:max(text.find(each[:30]), 0)].count("\n") + 1, each


def texts(name):
    path = pathlib.PurePath(name)
    text = (source / name).read_text(encoding="utf-8", errors="replace")
    tested = path.parts[0] == "tests"
    if path.suffix == ".md":
        yield from of_page(text)
    elif tested and path.suffix != ".sh" or {"doxygen", "results"} & set(path.parts):
        return
    elif path.suffix in (".cpp", ".hpp", ".c", ".h"):
        yield from of_code(text)
    elif path.suffix == ".sh" or text.startswith(("#!/bin/sh", "#!/bin/bash", "#!/usr/bin/env bash")):
        if not tested or len(path.parts) == 2 or path.parts[1] == "driver":
            yield from of_script(text)
    elif path.suffix == ".py":
        yield from of_python(text)
    elif path.suffix == ".cmake" or path.name == "CMakeLists.txt":
        yield from of_cmake(text)
    elif path.suffix == ".json":
        yield from of_json(text)
    elif path.suffix in (".yaml", ".yml"):
        yield from of_comments(text)
        for number, line in enumerate(text.splitlines(), 1):
            found = re.match(r"\s*(?:- )?(?:summary|description): (.*)", line)
            if found:
                yield number, found[1]
    elif (path.suffix in (".toml", ".conf", ".in", ".sysusers", ".tmpfiles", ".udev")
          or path.name in ("Containerfile", "slurm_roles")):
        yield from of_comments(text)


findings = []


def report(name, line, what, text):
    for number, (of, excerpt) in enumerate(exceptions):
        if of == name and excerpt in text:
            used.add(number)
            return
    findings.append(f"{name}:{line}: {what}")


checked = 0
readme_words = 0
for name in files():
    for line, text in texts(name):
        for one in sentences(text):
            words = re.findall(r"[A-Za-z][\w'’-]*", one)
            if len(words) < 3:
                continue
            checked += 1
            one = " ".join(one.split())
            for pattern, better in dialect:
                found = pattern.search(one)
                if found:
                    report(name, line, f"'{found[0]}': write {better}: {one[:110]}", one)
            if len(words) > MOST_WORDS:
                report(name, line, f"a sentence of {len(words)} words: {one[:110]}", one)
    if name.endswith(".md"):
        code = False
        for number, line in enumerate((source / name).read_text(encoding="utf-8").splitlines(), 1):
            fence = line.lstrip().startswith("```")
            code ^= fence
            if name == "README.md" and not code and not fence and not line.lstrip().startswith("|"):
                readme_words += len(line.split())
            if len(line) > MOST_COLUMNS and not code and not line.lstrip().startswith("|") and " " in line[:MOST_COLUMNS].strip():
                report(name, number, f"{len(line)} columns", line)

if readme_words > MOST_README_WORDS:
    findings.append(f"README.md: {readme_words} words beside tables and code, at most {MOST_README_WORDS}")
if not only:
    for number, (name, excerpt) in enumerate(exceptions):
        if number not in used:
            findings.append(f"plain_english_exceptions.txt: no text of {name} needs the exception '{excerpt}'")
print(*findings, sep="\n")
print(f"{checked} sentences, {len(findings)} findings")
sys.exit(1 if findings or not checked else 0)

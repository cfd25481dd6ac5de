#!/usr/bin/env python3
"""usage: abi.py check|record|try BUILD_DIR COMPILER

Holds the shared libraries of a build against what is recorded beside this file in abi/: the functions that each
shows, and the layout of every type that public headers declare. `check` fails where something is gone or has
changed, and where something is new, for that is to be recorded. `record` records what is there; where something
was gone or had changed, the version's minor goes up with it (adapters/embed/README.md). `try` shows that the check
finds what it should: a function that is gone, a field more, a virtual function more.
"""
import difflib
import lzma
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parent.parent
RECORDED = HERE / "abi"
# Each, and under which name its functions are recorded: for both event loops they are the same.
LIBRARIES = {"sluice": "sluice", "sluice-epoll": "sluice", "sluice_client": "sluice_client", "sluice_kfd": "sluice_kfd"}
# Folders whose public headers are the C++ library's, whole; of adapters/kfd and adapters/client some are.
WHOLE = ("core/vocab", "core/acquire", "core/runtime", "policies", "adapters/agent", "adapters/node")
C_HEADERS = (
    "core/vocab/include/sluice/client_words.h",
    "core/vocab/include/sluice/plugin.h",
    "adapters/client/include/sluice/client.h",
    "adapters/kfd/include/sluice/kfd.h",
)
# abidiff's exit code is made of bits; these are what it says of two libraries that differ.
ERROR, CHANGED = 0b0011, 0b1100


def run(*words, **more):
    return subprocess.run([str(word) for word in words], text=True, capture_output=True, **more)


def must(*words):
    done = run(*words)
    if done.returncode:
        sys.exit(f"{words[0]} failed ({done.returncode}): {done.stderr or done.stdout}")
    return done.stdout


def functions(library):
    """What a shared library shows, as people read it: no names that differ with the compiler's options (weak ones)."""
    lines = must("nm", "-D", "--defined-only", library).splitlines()
    names = [line.split()[2].split("@")[0] for line in lines if line.split()[1] in "TDBR"]
    shown = subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True, check=True).stdout
    return sorted(set(shown.splitlines()))


def public_headers(root):
    """Of the C++ library. Each pushes the visibility of what it declares."""
    headers = sorted(root.glob("[!.]*/include/**/*.hpp")) + sorted(root.glob("[!.]*/*/include/**/*.hpp"))
    pushing = [one for one in headers if "#pragma GCC visibility push(default)" in one.read_text()]
    hidden = [
        one
        for one in set(headers) - set(pushing)
        if str(one.relative_to(root)).startswith(WHOLE) and re.search(r"^namespace sluice", one.read_text(), re.M)
    ]
    if hidden:
        sys.exit(
            "these public headers do not push their visibility (#pragma GCC visibility push(default)), so the "
            f"shared library has nothing of them: {' '.join(sorted(str(one.relative_to(root)) for one in hidden))}"
        )
    return pushing


def public_types(header):
    """The names of all classes, structs and enumerations outside of others, but for templates."""
    # A short namespace closes without a comment, and has declarations alone.
    text = re.sub(r"^namespace \w+ \{\n(?:[^{}]*\n)\}$", "", header.read_text(), flags=re.M)
    spaces, before = [], ""
    for line in text.splitlines():
        if opened := re.match(r"(?:inline )?namespace ([\w:]+) \{$", line):
            spaces.append(opened[1])
        elif line.startswith("}  // namespace"):
            spaces.pop()
        elif spaces and not before.startswith("template"):
            found = re.match(r"(?:class|struct|enum class) (?:\[\[.*?\]\] )?(\w+)(?: final)?(?: :[^;]*)?(?: \{.*)?$", line)
            if found:
                yield "::".join(spaces + [found[1]])
        before = line


def layout(root, compiler, work):
    """All types of the public headers, as abidw writes them: reached by pointers to them; and, which it does not see
    where no function is defined, their tables of virtual functions, as the compiler writes them."""
    headers = public_headers(root) + [root / one for one in C_HEADERS]
    types = [name for one in headers if one.suffix == ".hpp" for name in public_types(one)]
    for one in headers:
        if one.suffix == ".h":
            types += ["struct " + name for name in re.findall(r"^(?:typedef )?struct (?:__attribute__\(\(.*?\)\) )?(\w+) \{", one.read_text(), re.M)]
    if len(types) < 100:
        sys.exit(f"only {len(types)} public types were found: the headers are written in another way now")
    folders = sorted(root.glob("*/include")) + sorted(root.glob("*/*/include"))
    source = work / "types.cpp"
    source.write_text(
        "".join(f'#include "{str(one).split("/include/")[1]}"\n' for one in headers)
        + "".join(f"{name}* pointer_to_{re.sub('[^a-z0-9_]+', '_', name)};\n" for name in types)
    )
    library = work / "types.so"
    must(
        compiler, "-std=c++20", "-g", "-fPIC", "-shared", "-w", f"-fdump-lang-class={work / 'classes'}",
        *[f"-I{one}" for one in folders], "-o", library, source,
    )  # fmt: skip
    types = must(
        "abidw", "--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--drop-private-types",
        *[word for one in folders for word in ("--headers-dir", one)], library,
    )  # fmt: skip
    blocks = (work / "classes").read_text().split("\n\n")
    tables = sorted(set(one.strip() for one in blocks if one.strip().startswith("Vtable for sluice::")))
    if len(tables) < 10:
        sys.exit(f"only {len(tables)} tables of virtual functions were found")
    return types, "\n".join(tables) + "\n"


def changed_layout(recorded, found, work):
    """What abidiff and a look at the tables say; empty: nothing."""
    (work / "recorded.abi").write_text(recorded[0])
    (work / "found.abi").write_text(found[0])
    done = run("abidiff", work / "recorded.abi", work / "found.abi")
    if done.returncode & ERROR:
        sys.exit(f"abidiff failed ({done.returncode}): {done.stderr or done.stdout}")
    problems = [f"public types are not as recorded:\n{done.stdout}"] if done.returncode & CHANGED else []
    lines = difflib.unified_diff(recorded[1].splitlines(), found[1].splitlines(), "recorded", "found", lineterm="", n=30)
    if lines := "\n".join(lines):
        problems.append(f"tables of virtual functions are not as recorded:\n{lines}")
    return problems


def changed_functions(build):
    problems = []
    for name, kept in LIBRARIES.items():
        recorded = set((RECORDED / f"lib{kept}.functions").read_text().splitlines())
        found = set(functions(build / "lib" / f"lib{name}.so"))
        problems += [f"lib{name}.so no longer has {one}" for one in sorted(recorded - found)]
        problems += [f"lib{name}.so has, and it is not recorded, {one}" for one in sorted(found - recorded)]
    return problems


def recorded_layout():
    return lzma.open(RECORDED / "types.abi.xz", "rt").read(), (RECORDED / "vtables").read_text()


def check(build, compiler, work):
    return changed_functions(build) + changed_layout(recorded_layout(), layout(SOURCE, compiler, work), work)


def record(build, compiler, work):
    RECORDED.mkdir(exist_ok=True)
    for name, kept in LIBRARIES.items():
        shown = functions(build / "lib" / f"lib{name}.so")
        (RECORDED / f"lib{kept}.functions").write_text("\n".join(shown) + "\n")
    types, tables = layout(SOURCE, compiler, work)
    # The same bytes for the same types: no time, no name.
    (RECORDED / "types.abi.xz").write_bytes(lzma.compress(types.encode(), preset=9))
    (RECORDED / "vtables").write_text(tables)


def try_changes(build, compiler, work):
    """Changes that the check must find, in a copy of the headers and in a library that lacks functions."""
    copy = work / "changed"
    for folder in list(SOURCE.glob("[!.]*/include")) + list(SOURCE.glob("[!.]*/*/include")):
        to = copy / folder.relative_to(SOURCE)
        to.parent.mkdir(parents=True, exist_ok=True)
        must("cp", "-r", folder, to)
    changes = (
        ("core/runtime/include/sluice/config.hpp", "struct scheduler_config {", "long added_field = 0;", "added_field"),
        ("core/vocab/include/sluice/policy.hpp", "class policy {\n public:", "virtual void more();", "Vtable for sluice::policy"),
        ("adapters/client/include/sluice/client.h", "typedef struct sluice_client_options {", "int c_added;", "c_added"),
    )  # fmt: skip
    for header, old, new, _ in changes:
        text = (copy / header).read_text()
        if old not in text:
            sys.exit(f"{header} no longer has '{old}': say here what else to change")
        (copy / header).write_text(text.replace(old, f"{old}\n{new}", 1))
    said = "\n".join(changed_layout(layout(SOURCE, compiler, work), layout(copy, compiler, work), work))
    for header, _, new, words in changes:
        if not any(words in line for line in said.splitlines()):
            sys.exit(f"'{new}' in {header} was not found, only: {said}")
    fewer = work / "build" / "lib"
    fewer.mkdir(parents=True)
    for name in LIBRARIES:
        (fewer / f"lib{name}.so").symlink_to(build / "lib" / f"lib{name}.so")
    (fewer / "libsluice_client.so").unlink()
    (work / "few.c").write_text("void sluice_client_open(void) {}")
    must(compiler, "-x", "c", "-shared", "-fPIC", "-o", fewer / "libsluice_client.so", work / "few.c")
    if "libsluice_client.so no longer has sluice_client_close" not in changed_functions(work / "build"):
        sys.exit("a function that is gone was not found")
    print("a function less, a field more and a virtual function more were found")


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in ("check", "record", "try"):
        sys.exit(__doc__)
    build, compiler = pathlib.Path(sys.argv[2]).resolve(), sys.argv[3]
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        if sys.argv[1] == "record":
            record(build, compiler, work)
        elif sys.argv[1] == "try":
            try_changes(build, compiler, work)
        elif problems := check(build, compiler, work):
            sys.exit("\n".join(problems) + "\nIf that is meant: tests/install/abi.py record (see its first lines)")
        else:
            print("as recorded")


main()

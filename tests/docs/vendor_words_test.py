#!/usr/bin/env python3
"""usage: vendor_words_test.py SOURCE_DIR

Checks that core, which knows capabilities and no driver, names no driver and nothing that only one driver has, and
that of the adapters only those include a driver's headers that are for one driver."""

import pathlib
import re
import subprocess
import sys

WORDS = re.compile(r"kfd|hqd|mqd|(?<![a-z])aql|sdma|(?<![a-z])hives?(?![a-z])|rocm|debug.?trap|nvidia|(?<![a-z])channels?(?![a-z])", re.I)
# Where such a word may stay, as a regular expression that the rest of the line must match, and why.
MAY_STAY = {
    "core/GLOSSARY.md": (".*", "it explains the terms of all folders"),
    "core/cmake/sluice_packages.cmake": (".*", "it lists the packages of all folders"),
    "core/cmake/sluice_portable.cmake": (".*", "it lists the programs of all folders"),
    "core/cmake/debian/postrm": (".*dev-kfd.device.*", "a link that the package's unit has made"),
}

INCLUDE = re.compile(r'#include "sluice/(kfd|sim)(/|\.h")')
# Folders that take any driver by sluice/driver.hpp, and their files that may include a driver's headers.
NO_DRIVER = [f"adapters/{folder}" for folder in ("agent", "cli", "client", "driver", "node", "observe", "roles")]
ONE_DRIVER = re.compile(
    "adapters/cli/accept/.*"  # It tests the preemption of each driver.
    r"|adapters/cli/src/(agent_)?main\.cpp"  # They list the drivers.
    # These commands are of one driver.
    r"|adapters/cli/src/(hqds|sim)\.[ch]pp"
)


def tracked(*folders):
    return subprocess.run(["git", "-c", "safe.directory=*", "-C", source, "ls-files", "--cached", "--others",
                           "--exclude-standard", *folders], check=True, capture_output=True, text=True).stdout.split()


source = pathlib.Path(sys.argv[1])
files = tracked("core")
wrong = []
used = set()
for file in files:
    if not (source / file).exists():
        continue
    for number, line in enumerate((source / file).read_text(encoding="utf-8").splitlines(), 1):
        found = WORDS.search(line)
        if not found:
            continue
        if file in MAY_STAY and re.fullmatch(MAY_STAY[file][0], line):
            used.add(file)
        else:
            wrong.append(f"{file}:{number}: '{found[0]}'")
wrong += [f"{file}: has no such word any more; remove it from the list" for file in MAY_STAY.keys() - used]
for file in tracked(*NO_DRIVER):
    if ONE_DRIVER.fullmatch(file) or not file.endswith((".cpp", ".hpp")) or not (source / file).exists():
        continue
    for number, line in enumerate((source / file).read_text(encoding="utf-8").splitlines(), 1):
        if INCLUDE.match(line):
            wrong.append(f"{file}:{number}: a driver's header: {line}")
print("\n".join(wrong))
print(f"{len(files)} files, {len(wrong)} wrong")
sys.exit(1 if wrong or len(files) < 100 else 0)

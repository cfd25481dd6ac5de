#!/usr/bin/env bash
# usage: tests/tidy.sh [--all | REVISION]
# Check the changed lines of C and C++ files with clang-tidy 14 and .clang-tidy. Installs missing Debian packages first.
#   REVISION  Check changes since REVISION [the merge base with origin/main, else HEAD], with uncommitted changes and
#             untracked files.
#   --all     Check every line, in about half an hour on 2 cores.
# Prints one line per finding. The full output, with the path to each finding, is in build/tidy/tidy.log.
# Exits with 1 if there are findings.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
. examples/common.sh

[ $# -le 1 ] || { sed -n '2s/^# //p' tests/tidy.sh >&2; exit 2; }
case ${1-} in
  -h | --help) sed -n '2,8s/^# //p' tests/tidy.sh; exit 0 ;;
  --all | [!-]* | '') ;;
  *) sed -n '2s/^# //p' tests/tidy.sh >&2; exit 2 ;;
esac

install_missing "${sluice_build_packages[@]}" "${sluice_unit_test_packages[@]}" "${sluice_test_packages[@]}" clang-tidy-14 || exit 1

git() { command git -c safe.directory='*' "$@"; }
case ${1-} in
  --all) revision= ;;
  '')
    if ! revision=$(git merge-base origin/main HEAD 2>/dev/null); then
      revision=HEAD
      echo "tidy.sh: origin/main does not exist: checks only uncommitted changes; for commits, name a REVISION" >&2
    fi
    ;;
  *) revision=$1 ;;
esac

folder=build/tidy
log=$folder/tidy.log
mkdir -p "$folder"

# findings: prints those in the log, and exits with 1 if there are any. They include files that do not compile, or on
# which clang-tidy failed.
findings() {
  if grep -E '(warning|error): .*\[|^Error |^Failed: |^Stack dump' "$log" | grep -v 'bugprone-suspicious-include' |
    sed "s#$PWD/##" | sort -u | grep .; then exit 1; fi
  exit 0
}

if [ -z "$revision" ]; then
  # Headers take most of the time, so that all files of a target are checked as one.
  cmake --preset tidy -B "$folder/whole" -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=0 >"$log" 2>&1 ||
    { cat "$log"; exit 1; }
  cp tests/.clang-tidy "$folder/whole/tests/"
  nice run-clang-tidy-14 -p "$folder/whole" -j2 -quiet -clang-tidy-binary clang-tidy-14 \
    '^(?!.*(verify_interface|\.hip\.cpp)).*$' >"$log" 2>&1
  findings
fi

cmake --preset tidy >"$log" 2>&1 || { cat "$log"; exit 1; }
# A header gets the compile command of a source file that includes it, directly or through headers.
python3 - "$folder/compile_commands.json" <<'END' || exit 1
import json, os, re, sys

path = sys.argv[1]
with open(path) as file:
    commands = json.load(file)
known = {entry["file"] for entry in commands}
for entry in list(commands):
    folders = re.findall(r"-I *(\S+)", entry["command"])
    files = [entry["file"]]
    while files:
        one = files.pop()
        with open(one) as file:
            names = re.findall(r'^#include "(.*)"', file.read(), re.MULTILINE)
        for name in names:
            places = (os.path.normpath(os.path.join(each, name)) for each in [os.path.dirname(one)] + folders)
            found = next(filter(os.path.isfile, places), None)
            if found and found not in known:
                known.add(found)
                files.append(found)
                command = entry["command"].replace(f" -c {entry['file']}", f" -c {found}")
                commands.append({**entry, "file": found, "command": command})
with open(path, "w") as file:
    json.dump(commands, file, indent=1)
END

# An index of its own also lists the untracked files. Left out are kernel code and files for hipcc.
index=$folder/index
cp "$(git rev-parse --git-path index)" "$index" &&
  GIT_INDEX_FILE=$index git add --intent-to-add . &&
  GIT_INDEX_FILE=$index git diff --unified=0 --no-ext-diff --no-color --dst-prefix=b/ "$revision" \
    -- '*.cpp' '*.hpp' '*.c' '*.h' ':!*.hip.cpp' ':!tests/driver/shim/*' >"$folder/changes.diff" || exit 2
echo "tidy.sh: $(grep -c '^+++ ' "$folder/changes.diff") files changed since $(git log -1 --format='%h (%s)' "$revision")" >&2

# The folders are for examples/custom_policy and custom_driver, which are built against an installation and so have no
# command.
nice clang-tidy-diff-14.py -p1 -j2 -path "$folder" -quiet -clang-tidy-binary clang-tidy-14 \
  -extra-arg="-I$PWD/policies/include" -extra-arg="-I$PWD/core/runtime/include" \
  -extra-arg="-I$PWD/core/testing/include" -extra-arg="-I$PWD/adapters/agent/include" \
  -extra-arg="-I$PWD/adapters/driver/include" -extra-arg="-I$PWD/adapters/node/include" <"$folder/changes.diff" >"$log" 2>&1 || { cat "$log"; exit 1; }
findings

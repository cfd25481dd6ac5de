"""Builds the wheel (PEP 517). The wheel contains the package's files and three files that describe them.

This module replaces setuptools, which pip would have to download.
"""

import base64
import hashlib
import pathlib
import re
import zipfile

HERE = pathlib.Path(__file__).resolve().parent


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    said = dict(re.findall(r'^([a-z-]+) = "(.*)"$', (HERE / "pyproject.toml").read_text(), re.M))
    called = f"{said['name']}-{said['version']}"
    package = sorted(one for one in (HERE / "sluice").iterdir() if one.is_file())
    files = {f"sluice/{one.name}": one.read_bytes() for one in package}
    described = f"{called}.dist-info"
    files[f"{described}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {said['name']}\nVersion: {said['version']}\n"
        f"Summary: {said['description']}\nRequires-Python: {said['requires-python']}\n"
    ).encode()
    files[f"{described}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: sluice\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = "".join(f"{name},sha256={_hash(text)},{len(text)}\n" for name, text in files.items())
    files[f"{described}/RECORD"] = f"{record}{described}/RECORD,,\n".encode()
    wheel = f"{called}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / wheel, "w", zipfile.ZIP_DEFLATED) as to:
        for name, text in files.items():
            to.writestr(zipfile.ZipInfo(name), text)  # Of 1980: the same files are the same wheel.
    return wheel


def _hash(text):
    return base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()

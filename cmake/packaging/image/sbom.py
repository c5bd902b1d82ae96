# SPDX-License-Identifier: Apache-2.0
"""The bill of materials of the image, as CycloneDX 1.5: sbom.py LOCK VERSION CREATED PROGRAM… > image.cdx.json

LOCK names the Debian packages in it with their versions and the SHA-256 of each; PROGRAMs are our own files, as they are in the image.
The same image has the same bill.
"""

import hashlib
import json
import pathlib
import sys


def of_package(line):
    name, version, digest = line.split()
    purl = f"pkg:deb/debian/{name}@{version.replace('+', '%2B')}?arch=amd64&distro=debian-12"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": digest}],
    }


def of_program(path, version):
    return {
        "type": "library" if path.suffix == ".so" else "application",
        "bom-ref": f"cairn:{path.name}",
        "name": path.name,
        "version": version,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}],
    }


def main():
    lock, version, created, *programs = sys.argv[1:]
    ours = [of_program(pathlib.Path(program), version) for program in programs]
    packages = [of_package(line) for line in pathlib.Path(lock).read_text().splitlines()]
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": created,
            "component": {"type": "container", "bom-ref": "cairn", "name": "cairn", "version": version},
        },
        "components": ours + packages,
    }
    json.dump(bill, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()

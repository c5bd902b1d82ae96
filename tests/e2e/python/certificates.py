# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests, made by the program `openssl`: a CA that signs what it is asked for."""

import pathlib
import subprocess


def run(*words):
    return subprocess.run(
        ["openssl", *map(str, words)], check=True, capture_output=True, text=True
    ).stdout


class Ca:
    """Its certificate is FOLDER/NAME.pem."""

    def __init__(self, folder, name="ca"):
        self.folder = pathlib.Path(folder)
        self.pem, self._key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        self._database = self.folder / f"{name}.db"
        self._database.write_text("")
        self._config = self.folder / f"{name}.cnf"
        self._config.write_text(
            f"[ca]\ndefault_ca=one\n[one]\ndatabase={self._database}\ndefault_md=sha256\n"
            f"default_crl_days=1\ncrlnumber={self.folder}/{name}.number\n"
        )
        (self.folder / f"{name}.number").write_text("01\n")
        run("req", "-x509", *_NEW_KEY, "-keyout", self._key, "-out", self.pem, "-days", "30",
            "-subj", f"/CN=test {name}")

    def issue(self, name, san="", use="clientAuth", days=1):
        """Returns the paths of the certificate and its key. days=0: it has expired."""
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        lines = ["basicConstraints=CA:FALSE"]
        lines += [f"subjectAltName={san}"] if san else []
        lines += [f"extendedKeyUsage={use}"] if use else []
        extensions.write_text("\n".join(lines) + "\n")
        run("req", "-new", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        run("x509", "-req", "-in", request, "-CA", self.pem, "-CAkey", self._key, "-days", days,
            "-extfile", extensions, "-out", certificate)
        return str(certificate), str(key)

    def revoke(self, target, *certificates):
        """Writes a list that revokes them to `target`, in one step."""
        files = ["-config", self._config, "-cert", self.pem, "-keyfile", self._key]
        for certificate in certificates:
            run("ca", *files, "-revoke", certificate)
        fresh = self.folder / "fresh.crl"
        run("ca", *files, "-gencrl", "-out", fresh)
        fresh.replace(target)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def serial_of(certificate):
    return run("x509", "-in", certificate, "-noout", "-serial").strip().partition("=")[2]

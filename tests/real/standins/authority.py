"""A certificate authority that lives as long as a test session, made by the openssl command."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from builder import process

_DAYS = "2"
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """What signs the certificates of the stand-ins; all of it lies in `folder`."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Self:
        folder.mkdir(parents=True)
        _openssl(
            *("req", "-x509", *_KEY, "-days", _DAYS, "-subj", "/CN=Stand-in authority"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
            *("-keyout", "ca.key", "-out", "ca.crt"),
            folder=folder,
        )
        return cls(folder=folder)

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.crt"

    def context(self, hosts: Sequence[str]) -> ssl.SSLContext:
        """What a server needs to be believed to be each of `hosts`."""
        names = ",".join(f"DNS:{host}" for host in hosts)
        _openssl(
            *("req", *_KEY, "-subj", "/CN=Stand-in", "-addext", f"subjectAltName={names}"),
            *("-addext", "extendedKeyUsage=serverAuth", "-keyout", "leaf.key", "-out", "leaf.csr"),
            folder=self.folder,
        )
        # RFC 5280 section 4.2.1.1; Python 3.13 refuses a certificate without it.
        (self.folder / "leaf.ext").write_text("authorityKeyIdentifier=keyid\n", encoding="ascii")
        _openssl(
            *("x509", "-req", "-in", "leaf.csr", "-CA", "ca.crt", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-days", _DAYS, "-copy_extensions", "copy"),
            *("-extfile", "leaf.ext", "-out", "leaf.crt"),
            folder=self.folder,
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "leaf.crt", self.folder / "leaf.key")
        return context

    def bundle(self, *others: Path) -> Path:
        """A file of this authority's certificate and those in `others`."""
        bundle = self.folder / "bundle.crt"
        texts = [path.read_text(encoding="utf-8") for path in (self.certificate, *others)]
        bundle.write_text("\n".join(texts), encoding="utf-8")
        return bundle


def _openssl(*arguments: str, folder: Path) -> None:
    process.run(["openssl", *arguments], cwd=folder)

"""Certificates are found by OpenSSL: the expected hashes are what `openssl x509` prints."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.engines.debian.certificates import install_certificates, subject_hash
from builder.engines.debian.deb import open_spool
from builder.engines.debian.tree import Tree
from builder.errors import ExternalError

# Made with `openssl req -x509 -multivalue-rdn` and the subject
# /C=XX/O=  Example  Trust SERVICES /CN=Größe Root CA+OU=Two
ODD = b"""-----BEGIN CERTIFICATE-----
MIICBjCCAaugAwIBAgIULrkXSqXGcauQZi/XjYUh8S3yYIQwCgYIKoZIzj0EAwIw
WDELMAkGA1UEBhMCWFgxIzAhBgNVBAoMGiAgRXhhbXBsZSAgVHJ1c3QgU0VSVklD
RVMgMSQwCgYDVQQLDANUd28wFgYDVQQDDA9HcsO2w59lIFJvb3QgQ0EwHhcNMjYx
MTIxMDU0MzQwWhcNMzYxMTE4MDU0MzQwWjBYMQswCQYDVQQGEwJYWDEjMCEGA1UE
CgwaICBFeGFtcGxlICBUcnVzdCBTRVJWSUNFUyAxJDAKBgNVBAsMA1R3bzAWBgNV
BAMMD0dyw7bDn2UgUm9vdCBDQTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABIWi
3fHs6VZgiYmxKTk66OOx5zZ0e11srqtNKpzp+oJtulP+se+5tboIW80f/lxXdbke
LxazKXCZ0+BwRabNWyKjUzBRMB0GA1UdDgQWBBTmrxZMtqu8iZ33PwDKfMfLF+jc
5DAfBgNVHSMEGDAWgBTmrxZMtqu8iZ33PwDKfMfLF+jc5DAPBgNVHRMBAf8EBTAD
AQH/MAoGCCqGSM49BAMCA0kAMEYCIQDGHDKLLlXdhSfEBa4PZgUDncYCTREmRWO7
lIAsuynH3AIhAJztrnurSQDWgY3Og1Zj3GyjulMAahiZwVN8BAAmzTOT
-----END CERTIFICATE-----
"""
ODD_HASH = "bcaccbac"

# … and with the subject /C=XX/CN=example  root
PLAIN = b"""-----BEGIN CERTIFICATE-----
MIIBnjCCAUWgAwIBAgIUfQdcAxsqpgonnyJhC/jvKfgHvaMwCgYIKoZIzj0EAwIw
JTELMAkGA1UEBhMCWFgxFjAUBgNVBAMMDWV4YW1wbGUgIHJvb3QwHhcNMjYxMTIx
MDU0MzQxWhcNMzYxMTE4MDU0MzQxWjAlMQswCQYDVQQGEwJYWDEWMBQGA1UEAwwN
ZXhhbXBsZSAgcm9vdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABJIQPSQTtI74
USmYcZn4cSvkA7UvZ2TnfdHaQ4ob/f8imXkzA95ivMieZLKmcwOOLu6hwS94NjiY
HbuF6kYNSyCjUzBRMB0GA1UdDgQWBBRGmnohy0PiENKEX4R0y24pKIg2uzAfBgNV
HSMEGDAWgBRGmnohy0PiENKEX4R0y24pKIg2uzAPBgNVHRMBAf8EBTADAQH/MAoG
CCqGSM49BAMCA0cAMEQCIFgGyVNT0WmtgCYgRU+dSiBbnWkmDhkaU87UIVXj7oaO
AiB+UJq2Aw/PRhfiM0OJF020nMrsvXfsG6jaLrbSjMEujw==
-----END CERTIFICATE-----"""
PLAIN_HASH = "a50c57f1"


@pytest.mark.parametrize(("pem", "expected"), [(ODD, ODD_HASH), (PLAIN, PLAIN_HASH)])
def test_hash_is_openssls(pem: bytes, expected: str) -> None:
    assert subject_hash(pem, "a.crt") == expected


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"-----BEGIN CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
        ODD.replace(b"MIICBjCCA", b"MIICBjCCB"),
    ],
)
def test_what_is_no_certificate_is_refused(pem: bytes) -> None:
    with pytest.raises(ExternalError, match=r"odd\.crt: not a certificate"):
        subject_hash(pem, "odd.crt")


@given(st.integers(0, 400), st.integers(0, 255))
def test_damage_is_refused_or_hashed(position: int, value: int) -> None:
    body = bytearray(ODD)
    body[28 + position % (len(body) - 60)] = value
    with contextlib.suppress(ExternalError):
        assert len(subject_hash(bytes(body), "a.crt")) == 8


def test_bundle_names_and_links(tmp_path: Path) -> None:
    with open_spool(tmp_path) as spool:
        tree = Tree(spool)
        shipped = "usr/share/ca-certificates"
        tree.put_file(f"{shipped}/mozilla/Plain (Root), 1.crt", PLAIN)
        tree.put_file(f"{shipped}/mozilla/Odd.crt", ODD)
        tree.put_file(f"{shipped}/mozilla/Odd_again.crt", ODD)
        tree.put_file(f"{shipped}/mozilla/README", b"no certificate")
        install_certificates(tree)
        bundle = tree.read("etc/ssl/certs/ca-certificates.crt")
        links = {name: entry.target for name, entry in tree.children("etc/ssl/certs")}
        conf = tree.read("etc/ca-certificates.conf").decode().splitlines()
    assert bundle == ODD + ODD + PLAIN + b"\n"
    assert links == {
        "ca-certificates.crt": "",
        "Odd.pem": f"/{shipped}/mozilla/Odd.crt",
        "Odd_again.pem": f"/{shipped}/mozilla/Odd_again.crt",
        "Plain_=Root=__1.pem": f"/{shipped}/mozilla/Plain (Root), 1.crt",
        f"{ODD_HASH}.0": "Odd.pem",
        f"{ODD_HASH}.1": "Odd_again.pem",
        f"{PLAIN_HASH}.0": "Plain_=Root=__1.pem",
    }
    listed = [line for line in conf if not line.startswith("#")]
    assert listed == [
        "mozilla/Odd.crt",
        "mozilla/Odd_again.crt",
        "mozilla/Plain (Root), 1.crt",
    ]

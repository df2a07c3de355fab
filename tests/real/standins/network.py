"""All stand-ins together, and the environment of a program that is to meet them."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .authority import Authority
from .files import Files, Protected
from .github import GitHub
from .ngc import Ngc
from .proxy import Proxy, proxying
from .registry import registry
from .server import Request, Server, Site, serving

VLLM_HOST, PYTORCH_HOST, GITHUB_HOST = "wheels.vllm.ai", "download.pytorch.org", "github.com"
INDEX_HOST, FILES_HOST = "index.example", "files.example"

_BUNDLES = ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE", "PIP_CERT")


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIns:
    """The hosts that are played here; `registry_port` is the way round nvcr.io's front.

    `index` and `files` are a company's own, which want to know who one is.
    """

    ngc: Ngc
    vllm: Files
    pytorch: Files
    github: GitHub
    index: Protected
    files: Protected
    registry_port: int
    authority: Authority
    server: Server
    proxy: Proxy

    @property
    def bundle(self) -> Path:
        """The certificates of this session's authority and of all that are trusted anyway."""
        return self.authority.folder / "bundle.crt"

    @property
    def environ(self) -> dict[str, str]:
        """What has to be set for a program to meet the stand-ins; hosts apart from them stay.

        Only httpx, uv and skopeo go by SSL_CERT_FILE; git, curl and pip have variables of theirs.
        """
        proxy = f"http://127.0.0.1:{self.proxy.port}"
        bundles = dict.fromkeys(_BUNDLES, str(self.bundle))
        return {"HTTPS_PROXY": proxy, "https_proxy": proxy, **bundles}

    def requests(self, host: str) -> list[Request]:
        """What a host was asked so far."""
        return [request for request in self.server.requests if request.host == host]


@contextmanager
def standing_in(folder: Path) -> Iterator[StandIns]:
    """Play all hosts; what they keep lies in `folder`."""
    authority = Authority.make(folder / "authority")
    authority.bundle(*_trusted())
    github = GitHub(folder / "repositories")
    vllm, pytorch = Files(), Files()
    index, files = Protected(Files(), "reader"), Protected(Files(), "fetcher")
    with registry(folder / "registry") as registry_port:
        ngc = Ngc(registry_port)
        sites: dict[str, Site] = {
            **ngc.sites,
            VLLM_HOST: vllm,
            PYTORCH_HOST: pytorch,
            GITHUB_HOST: github,
            INDEX_HOST: index,
            FILES_HOST: files,
        }
        with (
            serving(sites, authority.context(list(sites))) as server,
            proxying(dict.fromkeys(sites, server.port)) as proxy,
        ):
            yield StandIns(
                ngc=ngc,
                vllm=vllm,
                pytorch=pytorch,
                github=github,
                index=index,
                files=files,
                registry_port=registry_port,
                authority=authority,
                server=server,
                proxy=proxy,
            )


def _trusted() -> Sequence[Path]:
    """The certificates that programs here go by now."""
    default = ssl.get_default_verify_paths()
    found = [os.environ.get("SSL_CERT_FILE"), default.cafile, default.openssl_cafile]
    found.append("/etc/ssl/certs/ca-certificates.crt")
    return [Path(path) for path in found if path and Path(path).is_file()][:1]

"""References: Docker's grammar and abbreviations; what is read is written the same way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.errors import UsageError
from builder.oci.reference import Reference, parse_reference

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ubuntu", Reference("docker.io", "library/ubuntu")),
        ("ubuntu:24.04", Reference("docker.io", "library/ubuntu", "24.04")),
        ("nvidia/cuda:13", Reference("docker.io", "nvidia/cuda", "13")),
        ("docker.io/ubuntu", Reference("docker.io", "library/ubuntu")),
        ("index.docker.io/ubuntu", Reference("docker.io", "library/ubuntu")),
        ("nvcr.io/nvidia/cuda:13.0.2", Reference("nvcr.io", "nvidia/cuda", "13.0.2")),
        ("nvcr.io/nvidia/pytorch@" + DIGEST, Reference("nvcr.io", "nvidia/pytorch", None, DIGEST)),
        (f"quay.io/a/b/c:v1@{DIGEST}", Reference("quay.io", "a/b/c", "v1", DIGEST)),
        ("localhost/x", Reference("localhost", "x")),
        ("localhost:5000/x:y", Reference("localhost:5000", "x", "y")),
        ("registry:5000/x", Reference("registry:5000", "x")),
        ("[::1]:5000/x:y", Reference("[::1]:5000", "x", "y")),
        ("Registry/x", Reference("Registry", "x")),
        ("a__b/c-d.e_f:T.a-g_1", Reference("docker.io", "a__b/c-d.e_f", "T.a-g_1")),
    ],
)
def test_names_are_read_as_docker_reads_them(text: str, expected: Reference) -> None:
    assert parse_reference(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "x/",
        "/x",
        "Ubuntu",
        "nvcr.io/Nvidia/cuda",
        "nvcr.io/",
        "nvcr.io//cuda",
        "ubuntu:",
        "ubuntu:-x",
        "ubuntu:" + "t" * 129,
        "ubuntu@",
        "ubuntu@sha256:12",
        "ubuntu@sha512:" + "0" * 128,
        f"ubuntu@{DIGEST.upper()}",
        f"ubuntu@{DIGEST}:tag",
        "user@nvcr.io/x",
        "nvcr.io:port/x",
        "-nvcr.io/x",
        "a..b/c",
        "a/b c",
        "a/b\n",
        "x" * 256,
        "https://nvcr.io/nvidia/cuda",
    ],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not an image's name") as caught:
        parse_reference(text)
    assert caught.value.hint


def test_a_scheme_is_told() -> None:
    with pytest.raises(UsageError) as caught:
        parse_reference("docker://nvcr.io/nvidia/cuda:13")
    assert caught.value.hint == "without docker://"


@pytest.mark.parametrize(
    "text", ["me:hush@nvcr.io/x", "https://me:hush@nvcr.io/x", "me:hu/hush@nvcr.io/x:1", "a:hush@"]
)
def test_a_password_in_a_name_is_not_shown(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_reference(text)
    assert "hush" not in f"{caught.value.message} {caught.value.hint}"


def test_where_to_ask_and_what_for() -> None:
    hub = parse_reference("ubuntu")
    assert (hub.host, hub.wanted) == ("registry-1.docker.io", "latest")
    both = parse_reference(f"localhost:5000/x:y@{DIGEST}")
    assert (both.host, both.wanted) == ("localhost:5000", DIGEST)


def test_tag_and_digest_are_exchanged() -> None:
    cuda = parse_reference("nvcr.io/nvidia/cuda:13")
    pinned = cuda.with_digest(DIGEST)
    assert str(pinned) == f"nvcr.io/nvidia/cuda:13@{DIGEST}"
    assert str(pinned.with_tag("14")) == "nvcr.io/nvidia/cuda:14"
    with pytest.raises(UsageError, match="not a sha256 digest"):
        cuda.with_digest("sha256:0")
    with pytest.raises(UsageError, match="not an image tag"):
        cuda.with_tag("a b")


_PARTS = st.from_regex(r"[a-z0-9]+((\.|_|__|-{1,2})[a-z0-9]+)?", fullmatch=True)
_REFERENCES = st.builds(
    Reference,
    st.sampled_from(["docker.io", "nvcr.io", "localhost", "localhost:5000", "[::1]:80", "A1"]),
    st.lists(_PARTS.filter(lambda part: len(part) < 20), min_size=2, max_size=4).map("/".join),
    st.none() | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True),
    st.none() | st.just(DIGEST),
)


@given(_REFERENCES)
def test_what_is_written_reads_the_same(reference: Reference) -> None:
    assert parse_reference(str(reference)) == reference


@given(st.text(max_size=60) | st.from_regex(r"[a-z.:/@]{0,30}", fullmatch=True))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    try:
        reference = parse_reference(text)
    except UsageError:
        return
    assert parse_reference(str(reference)) == reference

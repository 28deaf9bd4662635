"""A package opens only as it was sealed: by its signature, for its cluster, in a known version."""

import hashlib
import hmac
import pickle
import zlib
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from django.test import override_settings
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.conf import Settings
from stoker.exceptions import (
    BadSignature,
    ConfigurationError,
    NewerVersion,
    NotSerializable,
    PackageTooLarge,
    UnreadablePackage,
)
from stoker.jobs import package as package_module
from stoker.jobs.package import (
    JOB,
    READERS,
    VALUE,
    ContentKind,
    Envelope,
    JobOptions,
    Package,
    Sealer,
    sealer_for,
)
from stoker.values import codec
from stoker.values.serializers import nothing_unpickled

pytestmark = pytest.mark.unit

PACKAGE = Package(
    job_id=UUID("01890a5d-ac96-774b-bcce-b302099a8057"),
    task="shop.tasks.ship",
    args=(42, (1, 2)),
    kwargs={"at": datetime(2026, 10, 25, 2, 30, tzinfo=UTC)},
    queue="mail",
    priority=10,
    enqueued_at=1793000000.5,
    options=JobOptions(5, 2, 30.0, 1793003600.0),
    metadata={"request": "r1"},
)

# Written by versions of Stoker as they were: these never change. A new version adds one, and the
# version before it becomes one that is only read.
VERSION_2 = (
    b'\xf5J\x02\x00["01890a5dac96774bbcceb302099a8057","shop.tasks.ship","mail",10,1793000000.5,'
    b'[5,2,30.0,1793003600.0],[42,{"$tuple":[1,2]}],'
    b'{"at":{"$datetime":"2026-10-25T02:30:00+00:00"}},{"request":"r1"}]'
    b"\x9b)\xeb\xd9\xd7\xdf\xab\x98\xa9\\7x\x8f'\xd2\xb1\x82\xbc\xc4\x9828\x14Q}&\xd9\x028\x9c\xe2\xff"
)
VERSION_2_COMPRESSED = b64decode(
    "9UoCAnicNcvBDoMgEATQf9n01pUsi2jhO3ojHFBJNNXUCp4a/r20SecwhzcZByRvhoKewmi6vm+HYRzjoIjJmHAj3QNC"
    "mp+7yCE9kkjzslfZwrICSkLZG0W/CI1OI6Mi8WfVVSaPrmV8wyWf+xrBOonsi68SMtjqU8gxL1udgIm7RlLD+k5sFVmi"
    "K30bSqmHI77OmOoLDgnFfwCvizKsDWJfq0Q6txYQ91bOoApdgYfVDoKkR03zH+tQA2hUM8E="
)
VERSION_2_PICKLED = b64decode(
    "9UoCAYAFlfIAAAAAAAAAXZQojCAwMTg5MGE1ZGFjOTY3NzRiYmNjZWIzMDIwOTlhODA1N5SMD3Nob3AudGFza3Muc2hp"
    "cJSMBG1haWyUSwpHQdq3wJAgAAAoSwVLAkdAPgAAAAAAAEdB2rfEFAAAAHSUQ4qABZV/AAAAAAAAAF2UKEsqSwFLAoaU"
    "ZX2UjAJhdJSMCGRhdGV0aW1llIwIZGF0ZXRpbWWUk5RDCgfqChkCHgAAAACUaASMCHRpbWV6b25llJOUaASMCXRpbWVk"
    "ZWx0YZSTlEsASwBLAIeUUpSFlFKUhpRSlHN9lIwHcmVxdWVzdJSMAnIxlHOHlC6UZS5T/xNpgZydi9Sx20CjpyYO/bC+"
    "rxucZe8j4S6zmGLAZA=="
)
VERSION_1 = (
    b'\xf5J\x01\x00["01890a5dac96774bbcceb302099a8057","shop.tasks.ship","mail",10,1793000000.5,'
    b'[5,2,30.0,1793003600.0],[42,{"$tuple":[1,2]}],'
    b'{"at":{"$datetime":"2026-10-25T02:30:00+00:00"}}]'
    b'\xfdP\x0bb>\xb4RQ8"\x0e\xe1\t\x12\xc1\x06-@I\x8d\x05Vi\x94J?^\x98\xb0r\x83~'
)
VERSION_1_PICKLED = b64decode(
    "9UoBAYAFleAAAAAAAAAAXZQojCAwMTg5MGE1ZGFjOTY3NzRiYmNjZWIzMDIwOTlhODA1N5SMD3Nob3AudGFza3Muc2hp"
    "cJSMBG1haWyUSwpHQdq3wJAgAAAoSwVLAkdAPgAAAAAAAEdB2rfEFAAAAHSUQ3iABZVtAAAAAAAAAF2UKEsqSwFLAoaU"
    "ZX2UjAJhdJSMCGRhdGV0aW1llIwIZGF0ZXRpbWWUk5RDCgfqChkCHgAAAACUaASMCHRpbWV6b25llJOUaASMCXRpbWVk"
    "ZWx0YZSTlEsASwBLAIeUUpSFlFKUhpRSlHOGlC6UZS7hEMtHLPz3MulzcPfkyl4gYx7ZL1bI3SIoVcUQE1FktQ=="
)


def sealer(*secrets: str | bytes, cluster: str = "shop", **options: Any) -> Sealer:
    """Make a sealer like the one that sealed the samples, but for what is given."""
    return Sealer(secrets or ("golden",), cluster, **options)


JSON, PICKLE = sealer(), sealer(serializer="pickle")


def wrapped(body: bytes, kind: Any = JOB, *, pickled: bool = False) -> bytes:
    """Put a body of one's own into a genuine envelope of the samples' cluster."""
    return Envelope(["golden"], "shop", None, 1 << 20).close(kind, body, pickled=pickled)


class Opened(BaseException):
    """Raised when something was unpickled that must not be."""


def _be_opened() -> None:
    raise Opened


class Trap:
    """Goes off when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        """Let unpickling call what raises Opened."""
        return _be_opened, ()


# The way there and back ------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [JSON, PICKLE], ids=["json", "pickle"])
def test_a_package_opens_as_it_was_sealed(chosen: Sealer) -> None:
    """Every field, with its type."""
    opened = chosen.open(chosen.seal(PACKAGE))
    assert opened == PACKAGE
    assert isinstance(opened.args, tuple)
    assert isinstance(opened.args[1], tuple)


@pytest.mark.parametrize("chosen", [JSON, PICKLE], ids=["json", "pickle"])
def test_the_least_package_opens_as_it_was_sealed(chosen: Sealer) -> None:
    """Without arguments, options and metadata."""
    least = Package(UUID(int=5), "a.b", (), {}, "default", -100, 0.0)
    assert chosen.open(chosen.seal(least)) == least


def test_what_is_only_like_a_dict_or_a_str_is_taken() -> None:
    """Metadata is any mapping; a queue's name may be a member of TextChoices."""
    like = replace(PACKAGE, metadata=MappingProxyType(dict(PACKAGE.metadata)))
    assert JSON.seal(like) == JSON.seal(PACKAGE)


def test_keywords_that_look_like_tags_are_taken() -> None:
    """A task may take **options of any name."""
    odd = replace(PACKAGE, kwargs={"$tuple": [1]}, metadata={"$dict": "x"})
    assert JSON.open(JSON.seal(odd)) == odd


def test_it_opens_without_arguments_where_it_is_not_run() -> None:
    """All that decides how it is tried is there; nothing of the project's is unpickled."""
    bare = replace(PACKAGE, args=(), kwargs={}, metadata={})
    assert JSON.open_without_arguments(VERSION_2) == bare
    assert JSON.open_without_arguments(VERSION_1) == bare
    trapped = PICKLE.seal(replace(PACKAGE, args=(Trap(),)))
    with pytest.raises(Opened):
        PICKLE.open(trapped)
    assert PICKLE.open_without_arguments(trapped) == bare
    for damaged in (trapped[:-1], b"", wrapped(b"{}"), wrapped(b"{}", pickled=True)):
        with pytest.raises(UnreadablePackage):
            PICKLE.open_without_arguments(damaged)


@pytest.mark.parametrize("value", [None, 1, "a", [(1,)], {"when": PACKAGE.kwargs["at"]}])
def test_a_return_value_comes_back(value: Any) -> None:
    """As JSON without a signature; pickled with one."""
    for chosen in (JSON, PICKLE):
        back = chosen.open_value(chosen.seal_value(value))
        assert back == value
        assert type(back) is type(value)
    assert PICKLE.open_value(JSON.seal_value(value)) == value


def test_a_pickled_value_may_be_anything_and_is_signed() -> None:
    """Whoever can write into the results' table must not be able to run code."""
    data = PICKLE.seal_value({1, 2})
    assert PICKLE.open_value(data) == {1, 2}
    with pytest.raises(BadSignature):
        sealer("another", serializer="pickle").open_value(data)
    trap = b"\xf5V\x01\x01" + pickle.dumps(Trap())
    for forged in (trap, trap + bytes(32), b"\xf5V\x01\x01" + PICKLE.seal(PACKAGE)[4:]):
        with pytest.raises(BadSignature):
            PICKLE.open_value(forged)


# Versions --------------------------------------------------------------------------------------


def test_the_format_is_what_it_was() -> None:
    """If this fails, the format was changed: add a version and a reader, keep the samples."""
    assert JSON.seal(PACKAGE) == VERSION_2
    assert max(READERS) == JOB.newest == VERSION_2[2]


@pytest.mark.parametrize("sample", [VERSION_2, VERSION_2_COMPRESSED, VERSION_2_PICKLED])
def test_samples_of_this_version_are_read(sample: bytes) -> None:
    """In each of its forms."""
    assert PICKLE.open(sample) == PACKAGE


@pytest.mark.parametrize("sample", [VERSION_1, VERSION_1_PICKLED])
def test_samples_of_the_version_before_are_read(sample: bytes) -> None:
    """They had no metadata."""
    assert PICKLE.open(sample) == replace(PACKAGE, metadata={})


@pytest.mark.parametrize("serializer", [JSON, PICKLE], ids=["json", "pickle"])
def test_the_logical_job_travels_where_a_unique_key_says_which(serializer: Sealer) -> None:
    """Others have no word more than before: see ``test_the_format_is_what_it_was``."""
    options = replace(PACKAGE.options, identity="unique order 7 01890a5d")
    data = serializer.seal(replace(PACKAGE, options=options))
    assert serializer.open(data).options == options
    assert serializer.open_without_arguments(data).options == options


def test_a_newer_version_is_said_to_be_newer() -> None:
    """By its number alone: how a newer version is signed can't be known."""
    with pytest.raises(
        NewerVersion, match=r"version 3, this one reads up to 2\. Update Stoker here"
    ):
        JSON.open(b"\xf5J\x03 who knows")
    with pytest.raises(NewerVersion, match="version 2, this one reads up to 1"):
        JSON.open_value(b"\xf5V\x02 who knows")


def test_header_without_a_body_is_read() -> None:
    with pytest.raises(NewerVersion, match="version 3"):
        JSON.open(b"\xf5J\x03\x00")
    with pytest.raises(UnreadablePackage, match="only 3 bytes"):
        JSON.open(b"\xf5J\x03")


def test_header_of_a_kind_has_its_magic_and_newest_version() -> None:
    """Kinds are made when the module is imported, so no other test runs this again."""
    assert ContentKind("test", b"\xf5T", 1, 3, is_always_signed=True).plain == b"\xf5T\x03\x00"


def test_a_version_too_old_is_said_to_be_too_old() -> None:
    """With what to do about it."""
    with pytest.raises(UnreadablePackage, match="version 0, which is not read any more"):
        JSON.open(b"\xf5J\x00" + VERSION_2[3:])


# Signatures ------------------------------------------------------------------------------------


def test_the_signature_is_the_standard_one() -> None:
    """HMAC with SHA-256 over header and body, by a key made of secret, purpose and cluster."""
    key = hmac.new(b"golden", b"stoker.package:shop", hashlib.sha256).digest()
    assert hmac.new(key, VERSION_2[:-32], hashlib.sha256).digest() == VERSION_2[-32:]


@pytest.mark.parametrize("stranger", [sealer("other"), sealer(cluster="shop2")])
def test_another_key_or_cluster_does_not_open_it(stranger: Sealer) -> None:
    """And is told what to look at."""
    with pytest.raises(BadSignature) as caught:
        stranger.open(VERSION_2)
    for word in ("SECRET_KEY", "CLUSTER", "SECRET_KEY_FALLBACKS until the queue is empty"):
        assert word in str(caught.value)


def test_a_key_is_rotated_without_losing_jobs() -> None:
    """The old key still opens, the new one seals."""
    rotated = sealer(b"new", "older", "golden")
    assert rotated.open(VERSION_2) == PACKAGE
    assert sealer("new").open(rotated.seal(PACKAGE)) == PACKAGE
    with pytest.raises(BadSignature):
        JSON.open(rotated.seal(PACKAGE))


@pytest.mark.parametrize("secrets", [[], [""], ["golden", ""], [b""]])
def test_an_empty_secret_is_refused(secrets: list[str | bytes]) -> None:
    """Anybody could sign with it."""
    with pytest.raises(ConfigurationError, match="must not be empty"):
        Sealer(secrets, "shop")


def test_every_field_is_signed() -> None:
    """What decides what runs can't be changed on the way: each field, in a genuine package."""
    changes: list[dict[str, Any]] = [
        {"job_id": UUID(int=1)},
        {"task": "shop.tasks.skip"},
        {"args": (43, (1, 2))},
        {"kwargs": {}},
        {"queue": "malt"},
        {"priority": 11},
        {"enqueued_at": 1793000000.0},
        {"options": JobOptions(6, 2, 30.0, 1793003600.0)},
        {"options": JobOptions(5, 2, 30.0, 1793003600.0, "another")},
        {"metadata": {"request": "r2"}},
    ]
    signature = VERSION_2[-32:]
    for change in changes:
        changed = JSON.seal(replace(PACKAGE, **change))
        with pytest.raises(BadSignature):
            JSON.open(changed[:-32] + signature)


ALL_SAMPLES = [
    VERSION_1,
    VERSION_1_PICKLED,
    VERSION_2,
    VERSION_2_COMPRESSED,
    VERSION_2_PICKLED,
]


@pytest.mark.parametrize("sample", ALL_SAMPLES)
def test_no_byte_can_be_changed(sample: bytes) -> None:
    """Every byte of every sample, by a bit and altogether."""
    for place in range(len(sample)):
        for flip in (1, 2, 0x80, 0xFF):
            changed = bytearray(sample)
            changed[place] ^= flip
            with pytest.raises(UnreadablePackage):
                PICKLE.open(bytes(changed))


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(ALL_SAMPLES), st.data())
def test_no_part_can_be_cut_out_put_in_or_moved(sample: bytes, data: st.DataObject) -> None:
    """Any other bytes give one of Stoker's errors, never another one, never a package."""
    begin = data.draw(st.integers(0, len(sample)))
    end = data.draw(st.integers(begin, len(sample)))
    changed = sample[:begin] + data.draw(st.binary(max_size=40)) + sample[end:]
    if changed in ALL_SAMPLES:
        return
    with pytest.raises(UnreadablePackage):
        PICKLE.open(changed)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from([b"", b"\xf5", b"\xf5J", b"\xf5J\x02", b"\xf5J\x02\x00"]), st.binary())
def test_garbage_is_no_package(start: bytes, rest: bytes) -> None:
    """Whatever it begins with."""
    with pytest.raises(UnreadablePackage):
        PICKLE.open(start + rest)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from([b"", b"\xf5V\x01\x00", b"\xf5V\x01\x01", b"\xf5V\x01\x02"]), st.binary())
def test_garbage_is_no_value(start: bytes, rest: bytes) -> None:
    """Without a signature it may be read as JSON; else it is one of Stoker's errors."""
    try:
        value = PICKLE.open_value(start + rest)
    except UnreadablePackage:
        return
    assert start == b"\xf5V\x01\x00"
    assert codec.read(rest) == value


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "There is no package here, only 0 bytes"),
        (b"\xf5J\x02", "There is no package here, only 3 bytes"),
        (b"gAAAAABk:1q2w3e", "These bytes are not a package of Stoker's"),
        (JSON.seal_value(1), "These bytes are not a package of Stoker's"),
        (VERSION_2[:30], "was changed or cut off"),
        (VERSION_2 + b"\n", "was changed or cut off"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, told: str) -> None:
    """In one sentence."""
    with pytest.raises(UnreadablePackage, match=told):
        JSON.open(data)


def test_a_package_is_no_value_and_a_value_no_package() -> None:
    """Not even with a genuine signature."""
    with pytest.raises(UnreadablePackage, match="not a value of Stoker's"):
        PICKLE.open_value(VERSION_2_PICKLED)
    with pytest.raises(UnreadablePackage, match="not a package of Stoker's"):
        PICKLE.open(PICKLE.seal_value([1]))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"$unheard-of":[]}',
        b"not json",
        b"\xff\xff",
        b'["01890a5dac96774bbcceb302099a8057"]',
        VERSION_1[4:-32],
        VERSION_2[4:-32].replace(b"01890", b"xxxxx"),
        VERSION_2[4:-32].replace(b"[5,2,", b"[5,2,7,8,9,"),
        VERSION_2[4:-32].replace(b"[5,2,30.0,1793003600.0]", b"null"),
        b"[" * 50_000,
    ],
)
def test_a_genuine_signature_around_nonsense_is_unreadable(body: bytes) -> None:
    """One broken package must not stop whoever reads a batch of them."""
    for pickled in (False, True):
        with pytest.raises(UnreadablePackage, match="could not be read"):
            PICKLE.open(wrapped(body, pickled=pickled))


def test_unknown_flags_are_unreadable() -> None:
    """A flag says how to read the rest; one that is not known makes that impossible."""
    content = b"\xf5J\x02\x04" + VERSION_2[4:-32]
    key = hmac.digest(b"golden", b"stoker.package:shop", "sha256")
    with pytest.raises(UnreadablePackage, match="flags 0x04 mean nothing"):
        JSON.open(content + hmac.digest(key, content, "sha256"))


# Pickle ----------------------------------------------------------------------------------------


def test_with_json_nothing_is_unpickled_whoever_signed_it() -> None:
    """The setting decides, not the package."""
    trapped = replace(PACKAGE, args=(Trap(),))
    for data in (PICKLE.seal(trapped), VERSION_2_PICKLED):
        with pytest.raises(UnreadablePackage, match='SERIALIZER "json" nothing is unpickled: set'):
            JSON.open(data)
        with pytest.raises(UnreadablePackage, match="SERIALIZER"):
            JSON.open_without_arguments(data)
    with pytest.raises(UnreadablePackage, match='set SERIALIZER to "pickle" here, too'):
        JSON.open_value(PICKLE.seal_value(Trap()))


def test_nothing_is_unpickled_before_the_signature_is_right() -> None:
    """Otherwise the signature would be for nothing."""
    trapped = PICKLE.seal(replace(PACKAGE, args=(Trap(),)))
    with pytest.raises(Opened):
        PICKLE.open(trapped)
    with pytest.raises(BadSignature):
        PICKLE.open(trapped[:-1] + bytes([trapped[-1] ^ 1]))
    with pytest.raises(BadSignature):
        sealer("another", serializer="pickle").open(trapped)


def test_pages_unpickle_neither_packages_nor_values() -> None:
    trapped = PICKLE.seal(replace(PACKAGE, args=(Trap(),)))
    value = PICKLE.seal_value(Trap())
    with nothing_unpickled():
        for opening, data in ((PICKLE.open, trapped), (PICKLE.open_value, value)):
            with pytest.raises(UnreadablePackage, match="pages unpickle nothing"):
                opening(data)
        assert PICKLE.open(VERSION_2) == PACKAGE
    with pytest.raises(Opened):
        PICKLE.open_value(value)


def test_pickle_opens_what_json_sealed() -> None:
    """So that SERIALIZER can be changed while jobs wait."""
    assert PICKLE.open(VERSION_2) == PACKAGE


class Gone:
    """Sealed by a version of the project that had it."""


def test_what_cannot_be_unpickled_is_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The class was renamed since, say."""
    data = PICKLE.seal(replace(PACKAGE, args=(Gone(),)))
    monkeypatch.delattr(f"{__name__}.Gone")
    with pytest.raises(UnreadablePackage, match=r"could not be read: AttributeError: .*Gone"):
        PICKLE.open(data)


# Size ------------------------------------------------------------------------------------------


LONG = replace(PACKAGE, args=("spam " * 1000,))


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_large_bodies_are_compressed(serializer: str) -> None:
    """Above the limit, and any cluster opens them, whatever its own limit."""
    compressing = sealer(compress_above_bytes=1000, serializer=serializer)
    plain = sealer(serializer=serializer)
    small, large = compressing.seal(PACKAGE), compressing.seal(LONG)
    assert small == plain.seal(PACKAGE)
    assert len(large) < 400 < 5000 < len(plain.seal(LONG))
    assert plain.open(large) == compressing.open(large) == LONG
    value = compressing.seal_value(LONG.args[0])
    assert len(value) < 400
    assert plain.open_value(value) == LONG.args[0]


def test_what_compression_makes_larger_stays_as_it_is() -> None:
    """Random bytes, for one."""
    noise = hashlib.shake_256(b"seed").digest(300)
    eager = sealer(compress_above_bytes=1, serializer="pickle")
    data = eager.seal_value(noise)
    assert data[3] == 1
    assert eager.open_value(data) == noise


def test_the_limit_of_size_counts_the_whole_package() -> None:
    """To the byte, and after compression."""
    size = len(JSON.seal(LONG))
    assert sealer(max_bytes=size).seal(LONG)
    with pytest.raises(PackageTooLarge) as caught:
        sealer(max_bytes=size - 1).seal(LONG)
    assert str(caught.value) == (
        "The package of shop.tasks.ship has 5,208 bytes, and MAX_PACKAGE_BYTES allows 5,207: store "
        "the data and pass its primary key or file name, set COMPRESS to True, or raise "
        "MAX_PACKAGE_BYTES."
    )
    assert sealer(max_bytes=1000, compress_above_bytes=100).seal(LONG)
    with pytest.raises(PackageTooLarge) as caught:
        sealer(max_bytes=100, compress_above_bytes=100).seal(LONG)
    assert "set COMPRESS" not in str(caught.value)


def test_only_so_much_is_decompressed() -> None:
    """A few kilobytes can hold gigabytes."""
    careful = Envelope(["golden"], "shop", None, 10_000)
    careless = Envelope(["golden"], "shop", 1, 100_000_000)
    for size in (9_999, 10_000):
        opened = careful.open(careless.close(JOB, b"a" * size, pickled=False), JOB)
        assert opened == (2, False, b"a" * size)
    for size in (10_001, 20_000_000):
        with pytest.raises(UnreadablePackage, match="more than the 10,000 bytes"):
            careful.open(careless.close(JOB, b"a" * size, pickled=False), JOB)


def test_larger_packages_may_be_decompressed_to_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_module, "LEAST_INFLATED_BYTES", 1000)
    long = replace(PACKAGE, args=("a" * 30_000,))
    chosen = sealer(max_bytes=500, compress_above_bytes=100)
    assert chosen.open(chosen.seal(long)) == long


def test_bodies_up_to_the_limit_are_not_compressed() -> None:
    envelope = Envelope(["golden"], "shop", 100, 1000)
    for size, is_compressed in ((100, False), (101, True), (1000, True), (1001, False)):
        data = envelope.close(VALUE, b"a" * size, pickled=False)
        assert (data[3] == 2) is is_compressed, size
        assert envelope.open(data, VALUE) == (1, False, b"a" * size)


def test_what_could_not_be_decompressed_is_not_compressed() -> None:
    """It is then refused for its size, instead of being a dead letter later."""
    envelope = Envelope(["golden"], "shop", 1, 1000)
    for size in (1000, 1001):
        data = envelope.close(VALUE, b"a" * size, pickled=False)
        assert envelope.open(data, VALUE) == (1, False, b"a" * size)


def test_broken_compression_is_unreadable() -> None:
    """A value has no signature that would show it earlier."""
    deflated = zlib.compress(b"[1]")
    for body in (b"", b"[1]", deflated[:-1], deflated[:-4] + b"abcd"):
        with pytest.raises(UnreadablePackage):
            JSON.open_value(b"\xf5V\x01\x02" + body)


# Settings --------------------------------------------------------------------------------------


def test_the_sealer_follows_the_settings() -> None:
    """The same one as long as nothing changes; another one as soon as a key does."""
    shop = Settings(cluster="shop")
    with override_settings(SECRET_KEY="golden", SECRET_KEY_FALLBACKS=[]):
        first = sealer_for(shop)
        assert first is sealer_for(Settings(cluster="shop", workers=7))
        assert first.open(VERSION_2) == PACKAGE
        with pytest.raises(BadSignature):
            sealer_for(Settings(cluster="other")).open(VERSION_2)
    with override_settings(SECRET_KEY="new", SECRET_KEY_FALLBACKS=[]):
        assert sealer_for(shop) is not first
        with pytest.raises(BadSignature):
            sealer_for(shop).open(VERSION_2)
    with override_settings(SECRET_KEY="new", SECRET_KEY_FALLBACKS=["older", "golden"]):
        assert sealer_for(shop).open(VERSION_2) == PACKAGE


@override_settings(SECRET_KEY="golden")
def test_every_option_reaches_the_sealer() -> None:
    """Serializer, compression and size."""
    pickling = sealer_for(Settings(cluster="shop", serializer="pickle"))
    assert pickling.open(VERSION_2_PICKLED) == PACKAGE
    compressing = sealer_for(Settings(cluster="shop", compress_above_bytes=100))
    assert len(compressing.seal(LONG)) < 400
    with pytest.raises(PackageTooLarge):
        sealer_for(Settings(cluster="shop", max_package_bytes=256)).seal(LONG)
    with pytest.raises(NotSerializable):
        compressing.seal(replace(PACKAGE, args=({1},)))

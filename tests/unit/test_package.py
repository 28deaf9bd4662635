"""Packages open only unchanged, with the right signature and cluster and a known version."""

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
from stoker.jobs.envelope import ContentKind, Envelope
from stoker.jobs.package import JOB, READERS, VALUE, JobOptions, Package, Sealer, sealer_for
from stoker.values import codec
from stoker.values.pickles import nothing_unpickled

from tests.examples import examples

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

# Samples written by each version of the format, which never change. A new version adds a sample.
# Version 3 is written if a hook has extras, else version 2, which earlier clusters run, too.
VERSION_2 = (
    b'\xf5J\x02\x00["01890a5dac96774bbcceb302099a8057","shop.tasks.ship","mail",10,1793000000.5,'
    b'[5,2,30.0,1793003600.0],[42,{"$tuple":[1,2]}],'
    b'{"at":{"$datetime":"2026-10-25T02:30:00+00:00"}},{"request":"r1"}]'
    b"\x9b)\xeb\xd9\xd7\xdf\xab\x98\xa9\\7x\x8f'\xd2\xb1\x82\xbc\xc4\x9828\x14Q}&\xd9\x028\x9c\xe2\xff"
)
SIMPLE_HOOKS = '[["success","shop.tasks.tell","mail",0,[3,3,null],[],{},[],"result"]]'
DEFERS_ITS_HOOK = replace(
    PACKAGE,
    options=JobOptions(
        hooks='[["success","shop.tasks.tell","mail",0,[3,3,null],[],{},[],"result",'
        '{"run_after_seconds":60.0}]]'
    ),
)
VERSION_3 = (
    b'\xf5J\x03\x00["01890a5dac96774bbcceb302099a8057","shop.tasks.ship","mail",10,1793000000.5,'
    b'[3,3,null,null,"",{"hooks":"[[\\"success\\",\\"shop.tasks.tell\\",\\"mail\\",0,[3,3,null],[],{},'
    b'[],\\"result\\",{\\"run_after_seconds\\":60.0}]]"}],[42,{"$tuple":[1,2]}],'
    b'{"at":{"$datetime":"2026-10-25T02:30:00+00:00"}},{"request":"r1"}]'
    b"@\x81G\xe4Ox\x01\xf7\xcf{pA\x1b;\xf6L\xdc\xbeh\xf4\x84\x9d\x12\xd5\xc2\x07R\x03\xc9r\xcc\x80"
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
    """Return a sealer like that of the samples, with these changes."""
    return Sealer(secrets or ("golden",), cluster, **options)


JSON, PICKLE = sealer(), sealer(serializer="pickle")


def wrapped(body: bytes, kind: Any = JOB, *, pickled: bool = False) -> bytes:
    """Put any body into a correctly signed envelope of the samples' cluster."""
    return Envelope(["golden"], "shop", None, 1 << 20).close(kind, body, pickled=pickled)


class Opened(BaseException):
    """Raised when a value is unpickled that must not be."""


def _be_opened() -> None:
    raise Opened


class Trap:
    """Raises Opened when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        """Make unpickling raise Opened."""
        return _be_opened, ()


# Round trips ------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [JSON, PICKLE], ids=["json", "pickle"])
def test_package_survives_sealing_and_opening(chosen: Sealer) -> None:
    """Each field keeps its type."""
    opened = chosen.open(chosen.seal(PACKAGE))
    assert opened == PACKAGE
    assert isinstance(opened.args, tuple)
    assert isinstance(opened.args[1], tuple)


@pytest.mark.parametrize("chosen", [JSON, PICKLE], ids=["json", "pickle"])
def test_empty_package_survives_sealing_and_opening(chosen: Sealer) -> None:
    """It has no arguments, options or metadata."""
    least = Package(UUID(int=5), "a.b", (), {}, "default", -100, 0.0)
    assert chosen.open(chosen.seal(least)) == least


def test_mapping_and_text_choices_are_accepted() -> None:
    """Metadata can be any mapping, and a queue name a member of TextChoices."""
    like = replace(PACKAGE, metadata=MappingProxyType(dict(PACKAGE.metadata)))
    assert JSON.seal(like) == JSON.seal(PACKAGE)


def test_keywords_that_look_like_tags_are_accepted() -> None:
    """A task can take **options with any name."""
    odd = replace(PACKAGE, kwargs={"$tuple": [1]}, metadata={"$dict": "x"})
    assert JSON.open(JSON.seal(odd)) == odd


def test_open_without_arguments_unpickles_nothing() -> None:
    """It returns all options for retries without unpickling the project's objects."""
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
def test_return_value_survives_sealing_and_opening(value: Any) -> None:
    """JSON values are not signed, pickled ones are."""
    for chosen in (JSON, PICKLE):
        back = chosen.open_value(chosen.seal_value(value))
        assert back == value
        assert type(back) is type(value)
    assert PICKLE.open_value(JSON.seal_value(value)) == value


def test_pickled_value_is_signed() -> None:
    """Write access to the table of results must not allow running code."""
    data = PICKLE.seal_value({1, 2})
    assert PICKLE.open_value(data) == {1, 2}
    with pytest.raises(BadSignature):
        sealer("another", serializer="pickle").open_value(data)
    trap = b"\xf5V\x01\x01" + pickle.dumps(Trap())
    for forged in (trap, trap + bytes(32), b"\xf5V\x01\x01" + PICKLE.seal(PACKAGE)[4:]):
        with pytest.raises(BadSignature):
            PICKLE.open_value(forged)


# Versions --------------------------------------------------------------------------------------


def test_format_of_this_version_does_not_change() -> None:
    """If this fails, the format was changed: add a version and a reader, and keep the samples."""
    assert JSON.seal(PACKAGE) == VERSION_2
    assert JSON.seal(DEFERS_ITS_HOOK) == VERSION_3
    assert JOB.usual == VERSION_2[2]
    assert max(READERS) == JOB.newest == VERSION_3[2]


@pytest.mark.parametrize("serializer", [JSON, PICKLE], ids=["json", "pickle"])
def test_version_depends_on_the_extras_of_hooks(serializer: Sealer) -> None:
    """Clusters that read only version 2 do not run a job whose hooks they do not understand."""
    for hooks, version in ((SIMPLE_HOOKS, 2), (DEFERS_ITS_HOOK.options.hooks, 3)):
        package = replace(PACKAGE, options=replace(PACKAGE.options, hooks=hooks))
        data = serializer.seal(package)
        assert data[2] == version
        assert serializer.open(data) == package
        assert serializer.open_without_arguments(data).options == package.options


@pytest.mark.parametrize("sample", [VERSION_2, VERSION_2_COMPRESSED, VERSION_2_PICKLED])
def test_samples_of_this_version_are_read(sample: bytes) -> None:
    """Plain, compressed and pickled."""
    assert PICKLE.open(sample) == PACKAGE


@pytest.mark.parametrize("sample", [VERSION_1, VERSION_1_PICKLED])
def test_samples_of_the_previous_version_are_read(sample: bytes) -> None:
    """Version 1 had no metadata."""
    assert PICKLE.open(sample) == replace(PACKAGE, metadata={})


@pytest.mark.parametrize("serializer", [JSON, PICKLE], ids=["json", "pickle"])
def test_identity_of_a_unique_job_is_in_the_package(serializer: Sealer) -> None:
    """Other packages do not change: see ``test_format_of_this_version_does_not_change``."""
    options = replace(PACKAGE.options, identity="unique order 7 01890a5d")
    data = serializer.seal(replace(PACKAGE, options=options))
    assert serializer.open(data).options == options
    assert serializer.open_without_arguments(data).options == options


def test_newer_version_is_reported() -> None:
    """Only the number is read, because the signature of a newer version is unknown."""
    with pytest.raises(
        NewerVersion, match=r"version 4, this one reads up to 3\. Update Stoker here"
    ):
        JSON.open(b"\xf5J\x04 who knows")
    with pytest.raises(NewerVersion, match="version 2, this one reads up to 1"):
        JSON.open_value(b"\xf5V\x02 who knows")


def test_header_without_a_body_is_read() -> None:
    with pytest.raises(NewerVersion, match="version 4"):
        JSON.open(b"\xf5J\x04\x00")
    with pytest.raises(UnreadablePackage, match="only 3 bytes"):
        JSON.open(b"\xf5J\x03")


def test_plain_header_consists_of_magic_usual_version_and_no_flags() -> None:
    """Kinds are made when the module is imported, so no other test runs this again."""
    assert ContentKind("test", b"\xf5T", 1, 2, 3, is_always_signed=True).plain == b"\xf5T\x02\x00"


def test_unsupported_old_version_is_reported() -> None:
    """The message says what to do."""
    with pytest.raises(UnreadablePackage, match="version 0, which this Stoker cannot read"):
        JSON.open(b"\xf5J\x00" + VERSION_2[3:])


# Signatures ------------------------------------------------------------------------------------


def test_signature_is_hmac_sha256() -> None:
    """It covers header and body, with a key made of secret, purpose and cluster."""
    key = hmac.new(b"golden", b"stoker.package:shop", hashlib.sha256).digest()
    assert hmac.new(key, VERSION_2[:-32], hashlib.sha256).digest() == VERSION_2[-32:]


@pytest.mark.parametrize("stranger", [sealer("other"), sealer(cluster="shop2")])
def test_another_key_or_cluster_cannot_open_a_package(stranger: Sealer) -> None:
    """The message says which settings to check."""
    with pytest.raises(BadSignature) as caught:
        stranger.open(VERSION_2)
    for word in ("SECRET_KEY", "CLUSTER", "SECRET_KEY_FALLBACKS until the queue is empty"):
        assert word in str(caught.value)


def test_rotated_key_still_opens_old_packages() -> None:
    """The new key seals."""
    rotated = sealer(b"new", "older", "golden")
    assert rotated.open(VERSION_2) == PACKAGE
    assert sealer("new").open(rotated.seal(PACKAGE)) == PACKAGE
    with pytest.raises(BadSignature):
        JSON.open(rotated.seal(PACKAGE))


@pytest.mark.parametrize("secrets", [[], [""], ["golden", ""], [b""]])
def test_empty_secret_is_refused(secrets: list[str | bytes]) -> None:
    """Anyone could sign with it."""
    with pytest.raises(ConfigurationError, match="must not be empty"):
        Sealer(secrets, "shop")


def test_every_field_is_signed() -> None:
    """A changed field with the signature of the original package is refused."""
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
def test_changed_byte_is_detected(sample: bytes) -> None:
    """Each byte of each sample is changed by one bit and completely."""
    for place in range(len(sample)):
        for flip in (1, 2, 0x80, 0xFF):
            changed = bytearray(sample)
            changed[place] ^= flip
            with pytest.raises(UnreadablePackage):
                PICKLE.open(bytes(changed))


@settings(deadline=None, max_examples=examples(300))
@given(st.sampled_from(ALL_SAMPLES), st.data())
def test_changed_part_is_detected(sample: bytes, data: st.DataObject) -> None:
    """Other bytes raise UnreadablePackage, no other error, and never open."""
    begin = data.draw(st.integers(0, len(sample)))
    end = data.draw(st.integers(begin, len(sample)))
    changed = sample[:begin] + data.draw(st.binary(max_size=40)) + sample[end:]
    if changed in ALL_SAMPLES:
        return
    with pytest.raises(UnreadablePackage):
        PICKLE.open(changed)


@settings(deadline=None, max_examples=examples(300))
@given(st.sampled_from([b"", b"\xf5", b"\xf5J", b"\xf5J\x02", b"\xf5J\x02\x00"]), st.binary())
def test_garbage_is_refused_as_a_package(start: bytes, rest: bytes) -> None:
    """Even if it begins like a package."""
    with pytest.raises(UnreadablePackage):
        PICKLE.open(start + rest)


@settings(deadline=None, max_examples=examples(300))
@given(st.sampled_from([b"", b"\xf5V\x01\x00", b"\xf5V\x01\x01", b"\xf5V\x01\x02"]), st.binary())
def test_garbage_is_refused_as_a_value_or_read_as_json(start: bytes, rest: bytes) -> None:
    """An unsigned value may be valid JSON; anything else raises UnreadablePackage."""
    try:
        value = PICKLE.open_value(start + rest)
    except UnreadablePackage:
        return
    assert start == b"\xf5V\x01\x00"
    assert codec.read(rest) == value


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "This is not a package: it has only 0 bytes"),
        (b"\xf5J\x02", "This is not a package: it has only 3 bytes"),
        (b"gAAAAABk:1q2w3e", "These bytes are not a package of Stoker's"),
        (JSON.seal_value(1), "These bytes are not a package of Stoker's"),
        (VERSION_2[:30], "was changed or cut off"),
        (VERSION_2 + b"\n", "was changed or cut off"),
    ],
)
def test_unreadable_package_is_explained(data: bytes, told: str) -> None:
    """The error is one sentence."""
    with pytest.raises(UnreadablePackage, match=told):
        JSON.open(data)


def test_packages_and_values_are_not_interchangeable() -> None:
    """A valid signature does not change that."""
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
def test_correctly_signed_garbage_raises_unreadable_package(body: bytes) -> None:
    """One broken package must not stop a whole batch."""
    for pickled in (False, True):
        with pytest.raises(UnreadablePackage, match="could not be read"):
            PICKLE.open(wrapped(body, pickled=pickled))


def test_unknown_flags_are_unreadable() -> None:
    """Flags say how to read the rest, so an unknown flag makes that impossible."""
    content = b"\xf5J\x02\x04" + VERSION_2[4:-32]
    key = hmac.digest(b"golden", b"stoker.package:shop", "sha256")
    with pytest.raises(UnreadablePackage, match="flags 0x04 are unknown"):
        JSON.open(content + hmac.digest(key, content, "sha256"))


# Pickle ----------------------------------------------------------------------------------------


def test_json_serializer_unpickles_nothing() -> None:
    """The setting decides, not the package, even if the signature is valid."""
    trapped = replace(PACKAGE, args=(Trap(),))
    for data in (PICKLE.seal(trapped), VERSION_2_PICKLED):
        with pytest.raises(UnreadablePackage, match='SERIALIZER "json" nothing is unpickled: set'):
            JSON.open(data)
        with pytest.raises(UnreadablePackage, match="SERIALIZER"):
            JSON.open_without_arguments(data)
    with pytest.raises(UnreadablePackage, match='set SERIALIZER to "pickle" here, too'):
        JSON.open_value(PICKLE.seal_value(Trap()))


def test_nothing_is_unpickled_before_the_signature_is_checked() -> None:
    """Otherwise the signature would not protect."""
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
            with pytest.raises(UnreadablePackage, match="pages do not unpickle"):
                opening(data)
        assert PICKLE.open(VERSION_2) == PACKAGE
    with pytest.raises(Opened):
        PICKLE.open_value(value)


def test_pickled_arguments_are_compared_without_unpickling_them() -> None:
    trapped = PICKLE.seal(replace(PACKAGE, args=(Trap(),)))
    moved = PICKLE.seal(replace(PACKAGE, args=(Trap(),), queue="elsewhere"))
    assert PICKLE.pickled_arguments(trapped) == PICKLE.pickled_arguments(moved) != b""
    assert PICKLE.pickled_arguments(trapped) != PICKLE.pickled_arguments(PICKLE.seal(PACKAGE))
    assert PICKLE.pickled_arguments(VERSION_2) == b""


def test_pickle_serializer_opens_json_packages() -> None:
    """So SERIALIZER can be changed while jobs wait."""
    assert PICKLE.open(VERSION_2) == PACKAGE


class Gone:
    """A class that the project removes later."""


def test_missing_class_makes_a_package_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example if the class was renamed."""
    data = PICKLE.seal(replace(PACKAGE, args=(Gone(),)))
    monkeypatch.delattr(f"{__name__}.Gone")
    with pytest.raises(UnreadablePackage, match=r"could not be read: AttributeError: .*Gone"):
        PICKLE.open(data)


# Size ------------------------------------------------------------------------------------------


LONG = replace(PACKAGE, args=("spam " * 1000,))


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_large_bodies_are_compressed(serializer: str) -> None:
    """Bodies above the limit are compressed, and clusters with any limit open them."""
    compressing = sealer(compress_above_bytes=1000, serializer=serializer)
    plain = sealer(serializer=serializer)
    small, large = compressing.seal(PACKAGE), compressing.seal(LONG)
    assert small == plain.seal(PACKAGE)
    assert len(large) < 400 < 5000 < len(plain.seal(LONG))
    assert plain.open(large) == compressing.open(large) == LONG
    value = compressing.seal_value(LONG.args[0])
    assert len(value) < 400
    assert plain.open_value(value) == LONG.args[0]


def test_data_that_compression_enlarges_is_not_compressed() -> None:
    """For example random bytes."""
    noise = hashlib.shake_256(b"seed").digest(300)
    eager = sealer(compress_above_bytes=1, serializer="pickle")
    data = eager.seal_value(noise)
    assert data[3] == 1
    assert eager.open_value(data) == noise


def test_size_limit_counts_the_whole_package() -> None:
    """Exactly to the byte, after compression."""
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


def test_decompression_is_limited() -> None:
    """A few kilobytes can decompress to gigabytes."""
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


def test_data_above_the_decompression_limit_is_not_compressed() -> None:
    """So it is refused for its size at the enqueue and does not become a dead letter."""
    envelope = Envelope(["golden"], "shop", 1, 1000)
    for size in (1000, 1001):
        data = envelope.close(VALUE, b"a" * size, pickled=False)
        assert envelope.open(data, VALUE) == (1, False, b"a" * size)


def test_broken_compression_is_unreadable() -> None:
    """A JSON value has no signature that would show it earlier."""
    deflated = zlib.compress(b"[1]")
    for body in (b"", b"[1]", deflated[:-1], deflated[:-4] + b"abcd"):
        with pytest.raises(UnreadablePackage):
            JSON.open_value(b"\xf5V\x01\x02" + body)


# Settings --------------------------------------------------------------------------------------


def test_sealer_follows_the_settings() -> None:
    """The sealer is cached until a key changes."""
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

"""What Django Q has pickled. A package that waited was signed, and is unpickled if the signature is
right. Arguments and results in ``django_q_task`` were not: of these only plain values are read, by
an unpickler that knows no other classes, so that nothing can be called by what is read."""

from __future__ import annotations

import base64
import binascii
import io
import pickle
import zlib
from typing import Any

from django.conf import settings
from django.core.signing import BadSignature, TimestampSigner, b64_decode

PLAIN = {
    ("builtins", "complex"),
    ("builtins", "frozenset"),
    ("builtins", "set"),
    ("collections", "OrderedDict"),
    ("datetime", "date"),
    ("datetime", "datetime"),
    ("datetime", "time"),
    ("datetime", "timedelta"),
    ("datetime", "timezone"),
    ("decimal", "Decimal"),
    ("uuid", "SafeUUID"),
    ("uuid", "UUID"),
    ("zoneinfo", "ZoneInfo._unpickle"),
}
MOST_BYTES = 64 << 20


class NotReadable(ValueError):
    """It is not read, and why."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in PLAIN:
            raise NotReadable(f"it has a {module}.{name}, and was not signed")
        return super().find_class(module, name)


def read_package(payload: str, name: str) -> dict[str, Any]:
    """The package of a job that waits.

    Args:
        name: of Q_CLUSTER, with which it was salted.

    Raises:
        NotReadable: its signature is wrong, or it cannot be unpickled here.
    """
    signer = TimestampSigner(
        key=settings.SECRET_KEY, salt=name, fallback_keys=settings.SECRET_KEY_FALLBACKS
    )
    try:
        text = signer.unsign(payload)
    except BadSignature:
        raise NotReadable(
            f"its signature is not that of SECRET_KEY with the name {name!r} of Q_CLUSTER"
        ) from None
    try:
        found = pickle.loads(_inflated(text))  # noqa: S301 - it was signed by this project
    except Exception as error:
        raise NotReadable(f"it cannot be unpickled: {type(error).__name__}: {error}") from error
    if not isinstance(found, dict) or not {"id", "func"} <= found.keys():
        raise NotReadable("it is no package of Django Q")
    return found


def read_plain(text: str | None) -> Any:
    """An argument or a result that was kept.

    Raises:
        NotReadable: it is not made of plain values.
    """
    if not text:
        return None
    try:
        return _PlainUnpickler(io.BytesIO(base64.b64decode(text, validate=True))).load()
    except NotReadable:
        raise
    except (binascii.Error, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise NotReadable(f"it cannot be unpickled: {error}") from None
    except Exception as error:
        raise NotReadable(f"it cannot be unpickled: {type(error).__name__}") from error


def _inflated(text: str) -> bytes:
    data = text.encode()
    if data[:1] != b".":
        return b64_decode(data)
    inflater = zlib.decompressobj()
    found = inflater.decompress(b64_decode(data[1:]), MOST_BYTES)
    if inflater.unconsumed_tail:
        raise NotReadable(f"it has more than {MOST_BYTES:,} bytes")
    return found

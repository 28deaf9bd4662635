"""Whether the loops of a cluster turn, as its board shows it: on its own host, asking nobody."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from stoker.conf import Settings

from . import board as place
from .board import Board, board_path, store_mark
from .plan import Plan

LOOPS = {
    "pusher": place.PUSHER_BEAT_NS,
    "monitor": place.MONITOR_BEAT_NS,
    "scheduler": place.SCHEDULER_BEAT_NS,
}
"""Role -> where its last turn stands."""


def loop_ages(board: Board) -> dict[str, float]:
    """Role -> how many seconds ago its loop turned last."""
    now_ns = time.monotonic_ns()
    return {role: round(max(0, now_ns - board[beat]) / 1e9, 3) for role, beat in LOOPS.items()}


def local_clusters(settings: Settings) -> Iterator[tuple[Path, Mapping[str, float]]]:
    """The boards of this backend's clusters on this host that run as this user and have a process
    left, each with the ages of its loops."""
    mark = store_mark(settings)
    folder = board_path(Plan().cluster_id).parent
    for path in sorted(folder.glob("cluster-*.board")):
        board = Board.of_the_living(path)
        if board is not None:
            if board[place.STORE] == mark:
                yield path, loop_ages(board)
            board.close()

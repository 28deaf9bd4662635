"""Whether the loops of a cluster turn, as its board shows it: on its own host, asking nobody."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from . import board as place
from .board import Board, board_path
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


def clusters_of_this_user() -> Iterator[tuple[Path, Mapping[str, float]]]:
    """The boards of this user's clusters on this host that have a process left, whatever project
    and backend they are of; each with the ages of its loops."""
    folder = board_path(Plan().cluster_id).parent
    for path in sorted(folder.glob("cluster-*.board")):
        board = Board.of_the_living(path)
        if board is not None:
            yield path, loop_ages(board)
            board.close()

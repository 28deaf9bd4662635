"""The scheduler: sleeps until something is due. So far that is upkeep."""

from __future__ import annotations

import time

from stoker.brokers import broker_for

from . import board as place
from .channel import is_readable
from .patience import set_deadlines
from .process import Child
from .upkeep import Upkeep

LOOK_SECONDS = 0.5


def main(child: Child) -> None:
    Scheduler(child).run()


class Scheduler:
    """One cluster's scheduler, with its upkeep."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.settings = child.plan.settings
        set_deadlines(self.settings)
        self.broker = broker_for(self.settings)
        self.upkeep = Upkeep(child.plan, self.settings, self.broker, self._beat)
        self.is_over = False
        self._upkeep_at = 0.0

    def run(self) -> None:
        self.upkeep.clean_up_at_start()
        while not self.is_over:
            self._beat()
            if time.monotonic() >= self._upkeep_at:
                self.upkeep.run()
                self._upkeep_at = time.monotonic() + self.settings.upkeep_seconds
            self.upkeep.vacuum_if_due()
            is_readable(LOOK_SECONDS, self.child.control)
            for message, _ in self.child.control.receive(block=False):
                self.is_over = self.is_over or message[0] == "exit"
        self.upkeep.give_up_lease()
        self.broker.close()

    def _beat(self) -> None:
        self.child.board[place.SCHEDULER_BEAT_NS] = time.monotonic_ns()

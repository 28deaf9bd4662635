"""The plan of faults of the crash checker."""

from __future__ import annotations

import pytest

from tests.crash.faults import plan


@pytest.mark.unit
def test_same_seed_gives_the_same_plan() -> None:
    def first(seed: int) -> list[str]:
        return [str(fault) for _, fault in zip(range(50), plan(seed, 2, True), strict=False)]

    assert first(7) == first(7)
    assert first(7) != first(8)


@pytest.mark.unit
@pytest.mark.parametrize("has_lines", [True, False])
def test_plan_has_every_kind_of_fault(has_lines: bool) -> None:
    faults = [fault for _, fault in zip(range(2000), plan(1, 2, has_lines), strict=False)]
    assert len({fault.kind for fault in faults}) == (19 if has_lines else 5)

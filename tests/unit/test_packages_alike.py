"""Packages sealed in a batch equal packages sealed one by one."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from stoker.exceptions import NotSerializable, PackageTooLarge
from stoker.jobs.enqueue import Alike, snapshot
from stoker.jobs.package import JobOptions, Package, Sealer
from stoker.values.ids import LINKED, is_linked, new_job_id, new_job_numbers

pytestmark = pytest.mark.unit

LIKE = Package(
    UUID(int=0),
    "shop.tasks.ship",
    (),
    {},
    "mäil",
    7,
    1_790_000_000.25,
    JobOptions(5, timeout_seconds=2.5),
    {"trace": 'a "b" ü'},
)
CALLS: list[tuple[Any, dict[str, Any]]] = [
    ((), {}),
    ((1, "ü\n\ud800", None, True, 2.5), {}),
    ((), {"order": [1, {"a": [2]}], "name": "x"}),
    (([1, [2]], {"deep": {"er": 1}}), {}),
    ((datetime(2026, 10, 25, tzinfo=UTC), (1, 2)), {"at": UUID(int=7), "$tuple": 1}),
    (({"$tuple": [1]},), {"$int": 3}),
]


def sealer(**options: Any) -> Sealer:
    return Sealer(["secret"], "cluster", **options)


class TestSealing:
    @pytest.mark.parametrize("compress", [None, 50])
    @pytest.mark.parametrize(
        "like", [LIKE, replace(LIKE, options=JobOptions(hooks="[]"), metadata={})]
    )
    @pytest.mark.parametrize(("args", "kwargs"), CALLS)
    def test_batch_sealing_gives_the_same_bytes(
        self, like: Package, compress: int | None, args: Any, kwargs: dict[str, Any]
    ) -> None:
        own = sealer(compress_above_bytes=compress)
        number = new_job_id().int
        arguments, is_plain = snapshot(args, kwargs)
        data = Alike(own, like).seal(number, arguments, is_plain=is_plain)
        expected = replace(like, job_id=UUID(int=number), args=tuple(args), kwargs=kwargs)
        assert data == own.seal(expected)
        assert own.open(data) == expected

    def test_refused_package_names_its_task(self) -> None:
        alike = Alike(sealer(max_bytes=300), LIKE)
        for args, error in (((1, float("nan")), NotSerializable), (("x" * 300,), PackageTooLarge)):
            arguments, is_plain = snapshot(args, {})
            with pytest.raises(error, match=r"shop\.tasks\.ship"):
                alike.seal(1, arguments, is_plain=is_plain)


class TestSnapshots:
    def test_later_changes_do_not_affect_a_snapshot(self) -> None:
        inner: list[int] = [1]
        args, kwargs = [inner], {"inner": inner}
        (positional, named), is_plain = snapshot(args, kwargs)
        inner.append(2)
        args.clear()
        kwargs.clear()
        assert (positional, named, is_plain) == (([1],), {"inner": [1]}, True)

    def test_arguments_of_subclasses_are_not_plain(self) -> None:
        class Text(str):
            __slots__ = ()

        assert [snapshot([value], {})[1] for value in ("a", Text("a"), [Text("a")])] == [
            True,
            False,
            False,
        ]
        assert not snapshot([], {"value": Text("a")})[1]


class TestNumbers:
    def test_ids_of_batches_and_single_jobs_rise_together(self) -> None:
        numbers = [new_job_id().int, *new_job_numbers(3), new_job_id().int, *new_job_numbers(2000)]
        assert numbers == sorted(set(numbers))
        assert {UUID(int=number).version for number in numbers} == {7}

    def test_batch_ids_can_be_marked_as_linked(self) -> None:
        assert all(is_linked(UUID(int=number)) for number in new_job_numbers(50, LINKED))
        assert not any(is_linked(UUID(int=number)) for number in new_job_numbers(50))

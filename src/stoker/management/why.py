"""``manage.py stoker why``: explain why a job is not running."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stoker.inspect.why.answer import answer_as_plain
from stoker.values.ids import parse_job_id
from stoker.why import Answer, Kind, why

from .details import answer_lines
from .subcommand import BACKEND, JSON, ExitCode, OutputLine, Subcommand, heading, option, refuse


class WhyCommand(Subcommand):
    """Show why a job is not running.

    Show why a job is not running, and what to do about it: one answer, read from the store. Or show
    where it runs, or how it ended.

    Exit code 0: it runs, has ended, or will run without any action.
    Exit code 1: it will not run without an action, which the last line names.
    Exit code 2: there is no job with this id, or only a broker that does not answer may have it,
    or the store is unreachable.

    --json writes one object: job_id, kind (listed in the guide), sentence, advice ("": nothing to
    do), needs_somebody (true, false), task, queue, facts {depending on the kind}.

    Examples:
      manage.py stoker why 01a1ffdb-f411-7482-86ed-55b43acb2507
      manage.py stoker why 01a1ffdb-f411-7482-86ed-55b43acb2507 --json | jq .kind
    """

    name = "why"
    options = (option("job", metavar="ID", help="The job's id: a UUID."), BACKEND, JSON)

    def run(self, options: dict[str, Any]) -> ExitCode:
        job_id = parse_job_id(options["job"])
        if job_id is None:
            raise refuse(f"{options['job']!r} is not a job id, which is a UUID.")
        with self.without_broker():
            answer = why(self.settings(options), job_id)
        self.answer(options, answer_as_plain(answer), self._lines(answer))
        if answer.kind == Kind.UNKNOWN or answer.facts.get("is_known") is False:
            return ExitCode.REFUSED
        return ExitCode.NO if answer.needs_somebody else ExitCode.DONE

    def _lines(self, answer: Answer) -> Iterator[OutputLine]:
        kind = answer.kind.value.replace("_", " ")
        yield heading(f"{answer.task or 'job'} {answer.job_id}: {kind}")
        yield from answer_lines(answer)

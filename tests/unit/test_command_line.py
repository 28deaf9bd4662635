"""Parsing and output of `manage.py stoker`."""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any

import django
import pytest
from django.core.management.base import CommandError
from django.test import override_settings
from django.utils.module_loading import import_string

from stoker.compat import TASKS_APP
from stoker.conf import Settings, read_settings, settings_for
from stoker.exceptions import ConfigurationError
from stoker.inspect.stats import ClusterState, longest_silence
from stoker.management.arguments import (
    duration,
    json_of,
    json_or_text,
    moment,
    positive_seconds,
    written,
)
from stoker.management.commands.stoker import SUBCOMMANDS, Command
from stoker.management.completion import script_of
from stoker.management.dead import DeadLettersCommand
from stoker.management.run import plan_of, queues_of
from stoker.management.subcommand import MEANINGS, ExitCode, as_json
from stoker.operations.clusters import judge
from stoker.values.durations import in_words
from stoker.values.text import first_line_of

pytestmark = pytest.mark.unit

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def parse(*arguments: str) -> dict[str, Any]:
    """Return the options that the command would get."""
    return vars(Command().create_parser("manage.py", "stoker").parse_args(arguments))


def call(*arguments: str) -> int:
    """Run the command like `manage.py` and return the exit code."""
    try:
        Command().run_from_argv(["manage.py", "stoker", *arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


# -- parsing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("-1.5", -1.5),
        ("true", True),
        ("null", None),
        ('"42"', "42"),
        ("[1, [2]]", [1, [2]]),
        ('{"id": 7}', {"id": 7}),
        ("hello", "hello"),
        ("", ""),
        ("007", "007"),
        ("NaN", "NaN"),
        ("{broken", "{broken"),
    ],
)
def test_argument_is_parsed_as_json_or_text(text: str, value: object) -> None:
    assert json_or_text(text) == value
    assert type(json_or_text(text)) is type(value)


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        (dict, "[1]", "is not an object"),
        (list, "{}", "is not a list"),
        (list, "[1", "is not JSON"),
        (dict, '{"a": NaN}', "NaN is not JSON"),
    ],
)
def test_invalid_json_is_refused(kind: type, text: str, told: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=told):
        json_of(kind)(text)


def test_moment_is_seconds_from_now_or_iso_8601() -> None:
    before = datetime.now(UTC)
    later = moment("90.5")
    assert timedelta(seconds=90) < later - before < timedelta(seconds=120)
    assert moment("2030-01-31T06:00+01:00") == datetime(2030, 1, 31, 5, tzinfo=UTC)
    with override_settings(TIME_ZONE="Europe/Berlin"):
        assert moment("2030-01-31T06:00") == datetime(2030, 1, 31, 5, tzinfo=UTC)
    with override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin"):
        assert moment("2030-01-31T05:00+00:00") == datetime(2030, 1, 31, 6)  # noqa: DTZ001 - naive


@pytest.mark.parametrize("text", ["tomorrow", "2030-13-01T00:00", "inf", "nan", "1e300"])
def test_invalid_moment_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=text):
        moment(text)


def test_options_between_arguments_are_parsed() -> None:
    options = parse("enqueue", "--priority", "3", "a.b", "1", "--queue", "mail", "2", "-5")
    assert (options["task"], options["arguments"]) == ("a.b", ["1", "2", "-5"])
    assert (options["priority"], options["queue"], options["wait"]) == (3, "mail", None)
    assert parse("enqueue", "a.b", "1", "--wait")["wait"] == float("inf")
    assert parse("enqueue", "a.b", "--wait", "3")["wait"] == 3
    assert parse("enqueue", "a.b", "--", "--queue")["arguments"] == ["--queue"]


def test_options_of_every_command_work_before_and_after_the_subcommand() -> None:
    assert parse("-v", "2", "info")["verbosity"] == 2
    assert parse("info", "-v", "2", "--no-color")["verbosity"] == 2
    assert parse("--no-color", "info")["no_color"] is True
    assert parse("info", "--settings", "x")["settings"] == "x"


@pytest.mark.parametrize("text", ["-1", "-99999999", "36501d", "9999999d", "1e300", "soon"])
def test_impossible_duration_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=text):
        duration(text)


@pytest.mark.parametrize("text", ["0", "-1", "1e300", "inf", "nan", "soon"])
def test_impossible_number_of_seconds_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=text):
        positive_seconds(text)


def test_longest_durations_can_be_used() -> None:
    assert datetime.now(UTC) - duration("36500d") < datetime(1970, 1, 1, tzinfo=UTC)
    assert duration("0s") == timedelta(0)
    assert positive_seconds("3153600000") == 3_153_600_000


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "--workers", "0"], "'0' must be between 1 and 1024"),
        (["run", "--workers", "two"], "'two' must be a number"),
        (["run", "--concurrency", "1.5"], "'1.5' must be a number"),
        (["run", "--shutdown-seconds", "-1"], "must be a number of seconds, at least 0"),
        (["run", "--log-level", "loud"], "invalid choice"),
        (["run", "--nonsense"], "stoker run: error: unrecognized arguments: --nonsense"),
        (["health", "--max-silence", "0"], "must be a number of seconds above 0"),
        (["enqueue"], "the following arguments are required: TASK"),
        (["enqueue", "a.b", "--kwargs", "[]"], "is not an object"),
        (["nonsense"], "invalid choice"),
        (["runn"], "There is no subcommand 'runn'. Did you mean 'run'?"),
        (["run", "--backend", "nonsense"], "TASKS has no backend 'nonsense'. Known: default."),
        (["run", "--drain", "--reload"], "choose one of them"),
        (["run", "--queues", "a,,b"], "has an empty name"),
        (["enqueue", "tests.app.tasks.nothing_such"], "There is no task 'tests.app.tasks.nothing"),
        (["enqueue", "tests.app.tasks.add", "1", "--args", "[1]"], "not both"),
        (["enqueue", "tests.app.tasks.add", "--priority", "101"], "between -100 and 100"),
        (["enqueue", "tests.app.tasks.add", "1", "--backend", "nonsense"], "nonsense"),
    ],
)
def test_invalid_input_is_reported_in_one_sentence(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments) == ExitCode.REFUSED
    output = capsys.readouterr()
    assert told in output.err
    assert "Traceback" not in output.err
    assert output.out == ""


def test_foreign_backend_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    path = f"{json_of.__module__}.Nothing"
    with override_settings(TASKS={"default": {"BACKEND": path}}):
        assert call("health") == ExitCode.REFUSED
    assert 'TASKS["default"] cannot be used' in capsys.readouterr().err
    dummy = f"{TASKS_APP}.backends.dummy.DummyBackend"
    with override_settings(TASKS={"default": {"BACKEND": dummy}}):
        assert call("run") == ExitCode.REFUSED
    assert "is DummyBackend, which has no clusters" in capsys.readouterr().err


def test_invalid_setting_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {"BACKEND": "stoker.backend.StokerBackend", "OPTIONS": {"WORKER": 3}}
    with override_settings(TASKS={"default": wrong}):
        assert call("run") == ExitCode.REFUSED
    assert "has no option 'WORKER'. Did you mean 'WORKERS'?" in capsys.readouterr().err


# -- help -----------------------------------------------------------------------------------------


def test_no_subcommand_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    shown = capsys.readouterr().out
    for name, path in SUBCOMMANDS.items():
        subcommand = import_string(path)
        assert subcommand.name == name
        assert name in shown
        assert subcommand.summary in shown


@pytest.mark.parametrize(("word", "option"), [("run", "--single"), ("health", "--max-silence")])
def test_subcommand_loads_no_other(word: str, option: str) -> None:
    """A cluster stays for weeks, and would keep their modules in memory. A health check is called
    every few seconds."""
    script = (
        "import sys; from stoker.management.commands.stoker import Command\n"
        f"try: Command().run_from_argv(['manage.py', 'stoker', {word!r}, '--help'])\n"
        "except SystemExit: print([name for name in sys.modules if 'doctor' in name])"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import django; django.setup(); {script}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert option in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


WORDS = {
    **{kind.name: kind for kind in map(import_string, SUBCOMMANDS.values())},
    **{f"dead {kind.name}": kind for kind in DeadLettersCommand.parts},
}
"""Words on the command line -> their subcommand."""


@pytest.mark.parametrize("words", WORDS)
def test_help_shows_every_option_and_examples(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*words.split(), "--help") == 0
    shown = capsys.readouterr().out
    assert WORDS[words].description.splitlines()[0] in shown
    assert f"manage.py stoker {words}" in shown.partition("examples:")[2]
    assert "--pythonpath" not in shown, "Django's options are not repeated"


def test_examples_in_the_help_can_be_parsed() -> None:
    parser = Command().create_parser("manage.py", "stoker")
    for subcommand in WORDS.values():
        for line in subcommand.examples.splitlines():
            words = line.partition(" || ")[0].partition(" | ")[0].split("   ")
            typed = shlex.split(next(part for part in words if part.strip()))
            assert typed[:2] == ["manage.py", "stoker"]
            parser.parse_args(typed[2:])


def test_every_exit_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(ExitCode)


# -- the plan -------------------------------------------------------------------------------------


def test_command_line_overrides_the_settings() -> None:
    plan = plan_of(parse("run", "--workers", "7", "--concurrency", "3", "--shutdown-seconds", "1"))
    assert plan.settings.workers == 7
    assert plan.settings.concurrency == 3
    assert plan.settings.shutdown_seconds == 1
    assert plan_of(parse("run")).settings == settings_for()


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        ([], "INFO"),
        (["-v", "0"], "WARNING"),
        (["-v", "2"], "DEBUG"),
        (["-v", "3"], "DEBUG"),
        (["-v", "0", "--log-level", "error"], "ERROR"),
    ],
)
def test_log_level_follows_the_verbosity(arguments: list[str], level: str) -> None:
    assert plan_of(parse("run", *arguments)).log_level == level


def test_unknown_queue_is_refused() -> None:
    some = read_settings("default", {"QUEUES": ["mail", "default"]})
    every = read_settings("default", {"QUEUES": []})
    assert queues_of(None, some) == ()
    assert queues_of("mail, default,mail", some) == ("mail", "default")
    assert queues_of("anything", every) == ("anything",)
    with pytest.raises(ConfigurationError, match=r"no queue 'post'. Its QUEUES are: default, mail"):
        queues_of("mail,post", some)


# -- output ---------------------------------------------------------------------------------------


def cluster(
    state: str = "running", silent_seconds: float = 1.0, host: str = "one", **more: Any
) -> ClusterState:
    return ClusterState("x", "stoker", host, 7, state, "", NOW, silent_seconds, (), 0, (), **more)


HUNG = cluster(silent_seconds=0.5, loops={"monitor": 60.0})
"""A cluster whose monitor hangs, with a fresh heartbeat."""


@pytest.mark.parametrize(
    ("known", "is_good", "told"),
    [
        ([cluster()], True, "alive: its last heartbeat is 1.0 s old"),
        ([cluster("stopping"), cluster()], True, "alive"),
        ([cluster(silent_seconds=99), cluster("running", 9.9)], True, "9.9 s"),
        ([cluster("quiet")], True, "asked to take no more jobs, is alive"),
        ([cluster("stopping")], False, "is stopping: it takes no more jobs"),
        ([cluster(silent_seconds=10.1)], False, "no heartbeat for 10.1 s: more than 10 s"),
        ([cluster("stopping"), cluster(silent_seconds=99)], False, "99.0 s"),
        ([HUNG, cluster(loops={"monitor": 0.1})], True, "its last heartbeat is 1.0 s old"),
        ([cluster(silent_seconds=9.9), HUNG], True, "its last heartbeat is 9.9 s old"),
        ([HUNG, cluster(silent_seconds=99)], False, "its monitor has not responded for 60.5 s"),
    ],
)
def test_one_working_cluster_is_healthy(
    known: Sequence[ClusterState], is_good: bool, told: str
) -> None:
    health = judge(known, 10)
    assert health.is_good is is_good
    assert told in health.sentence


def test_longest_silence_allows_a_slow_database() -> None:
    assert longest_silence(Settings(heartbeat_seconds=5, database_seconds=15)) == 20
    assert longest_silence(Settings(heartbeat_seconds=60, database_seconds=15)) == 180


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (59.9, "59.9 s"),
        (60, "1 min 0 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (781_200, "9 d 1 h"),
    ],
)
def test_in_words_shortens_durations(seconds: float, text: str) -> None:
    assert in_words(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [1, None]}, '{"a": [1, null]}'),
        ("ä", '"ä"'),
        (float("inf"), "inf"),
        (NOW, repr(NOW)),
    ],
)
def test_result_is_written_as_json_or_repr(value: object, text: str) -> None:
    assert written(value) == text


def test_as_json_writes_dataclasses_and_datetimes() -> None:
    @dataclass(frozen=True, slots=True)
    class Inner:
        at: datetime

    @dataclass(frozen=True, slots=True)
    class Outer:
        inner: tuple[Inner, ...]

    shown = json.loads(as_json({"outer": Outer((Inner(NOW),))}))
    assert shown == {"outer": {"inner": [{"at": NOW.isoformat()}]}}


def test_first_line_of_an_error_is_its_message_or_class() -> None:
    assert first_line_of(CommandError("first\nsecond")) == "first"
    assert first_line_of(KeyError()) == "KeyError"


def test_version_names_stoker_and_django(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--version") == 0
    told = f"Stoker {version('django-stoker')}, Django {django.get_version()}\n"
    assert capsys.readouterr().out == told


# -- completion -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["stoker", "pa"], ["pause"]),
        (["stoker", "jobs", ""], ["list", "show", "logs", "cancel", "run", "change"]),
        (["stoker", "jobs", "list", "--sea"], ["--search"]),
        (["stoker", "-v", "2", "dead", "requ"], ["requeue"]),
        (["stoker", "workflows", "list", "--state", "F"], ["FAILED"]),
        (["stoker", "completion", "b"], ["bash"]),
        (["migrate", "--f"], []),
    ],
)
def test_bash_completes_subcommands_options_and_values(
    typed: list[str], offered: list[str]
) -> None:
    script = script_of("bash", Command().create_parser("manage.py", "stoker"))
    words = " ".join(map(shlex.quote, ["manage.py", *typed]))
    asked = f"COMP_WORDS=({words}); COMP_CWORD={len(typed)}; _stoker_completion"
    done = subprocess.run(
        ["bash", "-c", f'{script}\n{asked}\necho "${{COMPREPLY[*]}}"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.split(), done.stderr) == (offered, "")


def test_completion_offers_no_hidden_options() -> None:
    parser = Command().create_parser("manage.py", "stoker")
    assert script_of("zsh", parser).count("bashcompinit") == 2
    assert "--force-color" not in script_of("bash", parser).partition("/stoker/run)")[2]

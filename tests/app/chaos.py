"""Tasks that harm their worker, and tasks that record what happens to them."""

import asyncio
import ctypes
import logging
import multiprocessing
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction
from django.db.models import Func, TextField, Value

from stoker import Snooze, job, task

from tests.app.models import Account
from tests.app.tasks import begin, end, swallow_timeout

BEAT_SECONDS = 0.02


@task(takes_context=True)
def beat(context, path: str, seconds: float, may_end: str = "") -> int:  # type: ignore[no-untyped-def] # Django's own context has two types
    """Record in a file, without a database, when each attempt ran: for this many seconds, or until
    the other file exists."""
    until = time.monotonic() + seconds
    with Path(path).open("ab", buffering=0) as file:
        line = f"{context.task_result.id} {context.attempt} {os.getpid()}"
        began_ns = time.monotonic_ns()
        while time.monotonic() < until and not (may_end and Path(may_end).exists()):
            file.write(f"{line} {began_ns} {time.monotonic_ns()}\n".encode())
            time.sleep(min(BEAT_SECONDS, max(0.0, until - time.monotonic())))
        file.write(f"{line} {began_ns} {time.monotonic_ns()}\n".encode())
    return context.attempt  # type: ignore[no-any-return] # as above


@task(takes_context=True)
def run_until(context, path: str) -> int:  # type: ignore[no-untyped-def] # as above
    """Record when this attempt began and ended, and end when the file exists."""
    line = begin(context, "")
    while not Path(path).exists():
        time.sleep(BEAT_SECONDS)
    return end(line)


@task
def return_much_after(path: str, size_bytes: int) -> str:
    """Return this many random digits when the file exists."""
    while not Path(path).exists():
        time.sleep(BEAT_SECONDS)
    return secrets.token_hex(size_bytes // 2)


@task(takes_context=True, at_most_once=True)
def run_once_until(context, path: str) -> int:  # type: ignore[no-untyped-def] # as above
    """Do the same with `at_most_once`."""
    return run_until.func(context, path)  # type: ignore[no-any-return] # as above


@task(takes_context=True, at_most_once=True)
async def run_once_async(context, path: str) -> None:  # type: ignore[no-untyped-def] # as above
    await sync_to_async(begin)(context, path)
    await asyncio.Event().wait()


@task(at_most_once=True)
def snooze_once() -> None:
    raise Snooze(0.1)


@task
def process_id() -> int:
    return os.getpid()


@task
def session_id(seconds: float = 0.0) -> int:
    """Return the server's id of this worker's connection."""
    with connection.cursor() as cursor:
        question = {"postgresql": "pg_backend_pid()", "mysql": "connection_id()"}
        cursor.execute(f"SELECT {question[connection.vendor]}")
        number = cursor.fetchone()[0]
    time.sleep(seconds)
    return int(number)


@task
async def session_id_async() -> int:
    return await sync_to_async(session_id.func)()


@task
async def read_slowly(count: int, seconds: float) -> int:
    """Read rows one by one from one cursor, with pauses in between."""
    read = 0
    async for _ in Account.objects.filter(total=count).aiterator(chunk_size=1):
        read += 1
        await asyncio.sleep(seconds / count)
    return read


@task(max_attempts=2, backoff=0.05, takes_context=True)
async def succeed_at_second(context) -> int:  # type: ignore[no-untyped-def] # as above
    if context.attempt == 1:
        raise ConnectionError("once")
    return context.attempt  # type: ignore[no-any-return] # as above


@task
async def meet(path: str, count: int) -> int:
    """End when this many have arrived: they must run at the same time."""
    _arrive(path)
    while not _are_there(path, count):  # noqa: ASYNC110 - they may be in several processes
        await asyncio.sleep(0.01)
    return count


@task
def meet_in_threads(path: str, count: int) -> int:
    _arrive(path)
    while not _are_there(path, count):
        time.sleep(0.01)
    return count


def _arrive(path: str) -> None:
    with Path(path).open("a") as file:
        file.write("here\n")


def _are_there(path: str, count: int) -> bool:
    return len(Path(path).read_text().split()) >= count


@task(max_attempts=10, max_crashes=2)
def crash_always() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@task(max_attempts=2)
def exit_cleanly() -> None:
    os._exit(0)


@task(max_attempts=1)
def raise_keyboard_interrupt() -> None:
    raise KeyboardInterrupt


@task(max_attempts=1)
async def raise_keyboard_interrupt_async() -> None:
    raise KeyboardInterrupt


@task(timeout=0.3, max_attempts=1)
def loop_too_long(seconds: float) -> None:
    """Loop in Python, where a soft time-out can interrupt a thread, too."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.01)


@task(timeout=0.3, max_attempts=1)
def sit_in_c_code(seconds: float) -> None:
    """Block all other threads and signal handlers of this process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.PyDLL(None).usleep(round(seconds * 1e6))


@task
def hold_everything(pipe: str) -> int:
    """Do the same until the other end of the pipe is opened."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    assert ctypes.PyDLL(None).open(pipe.encode(), os.O_RDONLY) >= 0
    return os.getpid()


@task(max_attempts=1)
def raise_poison() -> None:
    raise ValueError("a NUL \x00 and half a character \ud800")


@task
def return_much(size: int) -> str:
    return "x" * size


@task
async def return_much_async(size: int) -> str:
    return "x" * size


@task
def note_much(size: int) -> None:
    job.checkpoint("x" * size)


@task
def start_children() -> list[int]:
    """Start a fork, a pool and a program, and wait for their ends."""
    child = os.fork()
    if child == 0:
        os._exit(7)
    _, status = os.waitpid(child, 0)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        squares = pool.map(_square, [3, 4])
        pool.close()
        pool.join()  # to terminate a pool that is in use may hang, also outside of Stoker
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    program.terminate()
    return [os.waitstatus_to_exitcode(status), *squares, program.wait(10)]


def _square(number: int) -> int:
    return number * number


@task(takes_context=True)
def fork_and_come_back_twice(context, path: str) -> int:  # type: ignore[no-untyped-def] # as above
    """Fork a child that returns from the task like its parent."""
    if os.fork() == 0:
        time.sleep(0.2)
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return os.getpid()


@task(max_attempts=2, backoff=0.01, timeout=0.3)
def start_children_and_hang(path: str) -> None:
    """Start two children, a program and a fork, which run until they are killed, and block."""
    _start_children(path)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.PyDLL(None).usleep(600_000_000)


@task(max_attempts=2, backoff=0.01)
def start_children_and_die(path: str) -> None:
    _start_children(path)
    os.kill(os.getpid(), signal.SIGKILL)


@task
def start_child_and_return(path: str) -> None:
    _note_child(path, subprocess.Popen([sys.executable, "-c", SLEEP]).pid)


@task(max_attempts=1)
def start_session_and_die(path: str) -> None:
    """Start a child that is to outlive the worker, and die."""
    _note_child(path, subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True).pid)
    os.kill(os.getpid(), signal.SIGKILL)


SLEEP = "import time; time.sleep(600)"


def _start_children(path: str) -> None:
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    _note_child(path, child)
    _note_child(path, subprocess.Popen([sys.executable, "-c", SLEEP]).pid)


def _note_child(path: str, pid: int) -> None:
    with Path(path).open("a") as file:
        file.write(f"{pid}\n")


@task
def run_child_until(may_end: str) -> int:
    """Return the exit code of a child that ends when the file exists, or by Ctrl-C."""
    program = f"import os, time\nwhile not os.path.exists({may_end!r}): time.sleep(0.02)"
    Path(may_end).with_suffix(".begun").touch()
    return subprocess.run([sys.executable, "-c", program], check=False).returncode


@task
async def fork_and_come_back_async(path: str) -> int:
    return _fork_and_note(path)


def _fork_and_note(path: str) -> int:
    os.fork()
    _note_child(path, os.getpid())
    return os.getpid()


@task
def leave_daemon(seconds: float) -> int:
    """Start a child that outlives the task, and perhaps the worker."""
    child = os.fork()
    if child == 0:
        os.setsid()
        time.sleep(seconds)
        os._exit(0)
    return child


@task
def say(line: str) -> None:
    print(line)


@task
def look_at_log_record() -> list[str]:
    """Return the fields of a log record that is made inside a task."""
    records: list[logging.LogRecord] = []
    logger = logging.Logger("tests.app.chaos")  # noqa: LOG001 - used only here
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign] # for this one
    logger.addHandler(handler)
    logger.warning("seen")
    (record,) = records
    return [
        str(getattr(record, name)) for name in ("stoker_job_id", "stoker_task", "stoker_attempt")
    ]


@task(timeout=0.3, max_attempts=2, give_up_on=TimeoutError)
def ignore_timeout_and_give_up(seconds: float) -> None:
    swallow_timeout.func(seconds)


@task(timeout=0.3, max_attempts=1)
def query_too_long(pk: int) -> None:
    """Read a row by a query that takes longer than the time-out."""
    function = "SLEEP" if connections["default"].vendor == "mysql" else "PG_SLEEP"
    slept = Func(Value(1.0), function=function, output_field=TextField())
    Account.objects.annotate(slept=slept).get(pk=pk)


@task(max_attempts=1)
def leave_atomic_open(total: int) -> None:
    """Leave a transaction open, into which later jobs must not write."""
    transaction.atomic().__enter__()
    Account.objects.create(total=total)


@task(max_attempts=1)
def begin_and_return(total: int) -> None:
    """Begin a transaction without Django's knowledge."""
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
    Account.objects.create(total=total)


@task(max_attempts=1)
async def begin_and_return_async(total: int) -> None:
    await sync_to_async(begin_and_return.func)(total)


@task(max_attempts=1)
def turn_autocommit_off(total: int) -> None:
    transaction.set_autocommit(False)
    Account.objects.create(total=total)


@task(max_attempts=1)
def only_turn_autocommit_off(total: int) -> None:
    """Begin no transaction, but let the next statement do it."""
    connection.ensure_connection()
    transaction.set_autocommit(False)


@task(max_attempts=1)
async def only_turn_autocommit_off_async(total: int) -> None:
    await sync_to_async(only_turn_autocommit_off.func)(total)


@task(max_attempts=1)
def begin_and_raise(total: int) -> None:
    begin_and_return.func(total)
    raise ValueError(total)


@task(max_attempts=1)
def begin_and_commit(total: int) -> int:
    begin_and_return.func(total)
    with connection.cursor() as cursor:
        cursor.execute("COMMIT")
    return total


@task
async def keep_account_async(total: int) -> int:
    return int((await Account.objects.acreate(total=total)).pk)


@task
def close_connections() -> None:
    connections.close_all()


@task
def keep_account(total: int) -> int:
    return int(Account.objects.create(total=total).pk)


@task
def take_memory(megabytes: int) -> int:
    _taken.append(bytearray(megabytes << 20))
    return os.getpid()


_taken: list[bytearray] = []


@task(max_attempts=3)
def die_after_returning(seconds: float) -> None:
    """Die by a timer after the task has returned, before its report is read."""
    threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()


@task(max_attempts=1)
async def exit_in_subtask(code: int) -> None:
    await asyncio.gather(_exit(code))


@task
async def leave_exiting_subtask(code: int) -> int:
    """Leave behind a subtask that raises SystemExit."""
    asyncio.create_task(_exit(code))  # noqa: RUF006 - left behind
    return code


async def _exit(code: int) -> None:
    sys.exit(code)


@task(max_attempts=1)
async def cancel_own_task() -> int:
    current = asyncio.current_task()
    assert current is not None
    current.cancel()
    return 1

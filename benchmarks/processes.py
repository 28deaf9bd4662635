"""Resources of processes: processor time and memory, read from the kernel."""

from collections.abc import Iterable
from pathlib import Path

import psutil


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants."""
    try:
        head = psutil.Process(pid)
        return [head, *head.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def processor_seconds(processes: Iterable[psutil.Process]) -> dict[str, float]:
    """Return the processor seconds that processes have used so far, by name of the process."""
    used: dict[str, float] = {}
    for process in processes:
        try:
            name, seconds = process.name(), _processor_seconds(process)
        except psutil.NoSuchProcess:
            continue
        used[name] = used.get(name, 0.0) + seconds
    return used


def _processor_seconds(process: psutil.Process) -> float:
    """Return nanoseconds if the kernel has them, because clock ticks are too coarse for idle
    processes."""
    try:
        threads = Path(f"/proc/{process.pid}/task").iterdir()
        return sum(int((one / "schedstat").read_text().split()[0]) for one in threads) / 1e9
    except (OSError, ValueError):
        times = process.cpu_times()
        return float(times.user + times.system)


def difference(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Return the difference between two measurements."""
    return {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}


def memory_mb(processes: Iterable[psutil.Process]) -> float:
    """Return the memory in MiB. Shared pages are counted once (PSS) if the kernel reports that."""
    total = 0
    for process in processes:
        try:
            info = process.memory_full_info()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        total += getattr(info, "pss", info.rss)
    return total / (1 << 20)

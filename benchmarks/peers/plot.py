"""Plots of what was measured: `python -m benchmarks.peers.plot FILE [IMAGE.svg]`.

FILE is what `python -m benchmarks.peers --json FILE` has written. Matplotlib is in an environment
of its own, as the peers are, which is made when it is first needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.report import ROWS, Measured, fastest_first, numbers

ROOT = Path(__file__).resolve().parents[2]
IMAGE = ROOT / "docs" / "images" / "next-to-other-queues.svg"
BY_NAME = {row.name: row for row in ROWS}
OURS, THEIRS, BY_HAND = "#b5391f", "#5b7083", "#a9b4bd"
SERVER = "#d9c27a"


def main() -> None:
    """Draw with the Python that has matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        if os.environ.get("PEER_PLOTS"):
            raise
        from benchmarks.peers.environments import plotting_python

        python = plotting_python()
        environment = {**os.environ, "PEER_PLOTS": "1", "PYTHONPATH": str(ROOT)}
        command = [python, "-m", "benchmarks.peers.plot", *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)
    mpl.use("svg")
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "stoker", "font.size": 9}
    image = Path(sys.argv[2]) if len(sys.argv) > 2 else IMAGE
    _draw(json.loads(Path(sys.argv[1]).read_text()), image)
    print(image)


def _draw(measured: Measured, image: Path) -> None:
    from matplotlib import pyplot as plt

    peers = [one for one in reversed(fastest_first(measured)) if one[1]["rounds"]]
    titles = [peer["about"]["title"] for _, peer in peers]
    colours = [_colour(measured, name) for name, _ in peers]
    figure, panels = plt.subplots(
        1, 3, sharey=True, figsize=(11, 1.1 + 0.3 * len(peers)), layout="constrained"
    )
    rounds = [peer["rounds"] for _, peer in peers]
    _rates(panels[0], rounds, colours)
    _costs(panels[1], rounds, colours)
    _pick_ups(panels[2], rounds, colours)
    panels[0].set_yticks(range(len(titles)), titles)
    for panel in panels[1:]:  # bars need a scale that begins at zero, points do not
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:,g}")
    panels[0].xaxis.set_major_formatter("{x:,.0f}")
    panels[0].locator_params(axis="x", nbins=4)
    for panel in panels:
        panel.grid(axis="x", color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(axis="y", length=0)
    machine = measured["machine"]
    servers = "; ".join(machine["servers"].values())
    figure.supxlabel(f"{measured['date']}, {machine['cores']} cores; {servers}", fontsize=8)
    image.parent.mkdir(exist_ok=True)
    figure.savefig(image, metadata={"Date": None})


def _rates(panel: Any, rounds: list[list[Measured]], colours: list[str]) -> None:
    """Draw the medians as bars, and all rounds as points on them."""
    panel.set_title("no-op jobs per second, drained and recorded", fontsize=9)
    for place, (found, colour) in enumerate(zip(rounds, colours, strict=True)):
        rates = numbers(found, BY_NAME["drain"])
        panel.barh(place, median(rates), color=colour, height=0.6)
        panel.plot(rates, [place] * len(rates), "|", color="black", markersize=7)
        panel.annotate(
            f"{median(rates):,.0f}",
            (max(rates), place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    panel.margins(x=0.2)


def _costs(panel: Any, rounds: list[list[Measured]], colours: list[str]) -> None:
    """Draw two points, because parts of a bar cannot be compared on a logarithmic scale."""
    panel.set_title("processor microseconds per job", fontsize=9)
    for place, (found, colour) in enumerate(zip(rounds, colours, strict=True)):
        workers = median(numbers(found, BY_NAME["workers_us"]))
        servers = median(numbers(found, BY_NAME["servers_us"]))
        labels = {"label": "workers"}, {"label": "server"}, {"label": "together"}
        of_workers, of_servers, of_both = labels if place == 0 else ({}, {}, {})
        panel.plot(servers, place, "s", color=SERVER, markersize=5, **of_servers)
        panel.plot(workers, place, "o", color=colour, markersize=5, **of_workers)
        panel.plot(workers + servers, place, "|", color="black", markersize=9, **of_both)
    panel.legend(fontsize=7, frameon=False, loc="upper right")


def _pick_ups(panel: Any, rounds: list[list[Measured]], colours: list[str]) -> None:
    """Draw a line from the median to the 99th percentile."""
    panel.set_title("pick-up on idle workers, ms: p50 to p99", fontsize=9)
    for place, (found, colour) in enumerate(zip(rounds, colours, strict=True)):
        half, most = (median(numbers(found, BY_NAME[name])) for name in ("p50", "p99"))
        panel.plot([half, most], [place, place], "-", color=colour, linewidth=3)
        panel.plot(half, place, "o", color=colour, markersize=5)


def _colour(measured: Measured, name: str) -> str:
    stoker, raw = (base.partition(":")[0] for base in measured["bases"])
    return {stoker: OURS, raw: BY_HAND}.get(name.partition(":")[0], THEIRS)


if __name__ == "__main__":
    main()

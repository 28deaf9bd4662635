"""``python -m examples.small.media``"""

from examples.small.stage import begin, run_cluster


def main() -> None:
    begin("media")
    from stoker import chain, group

    from .tasks import encode, publish

    film = "Metropolis"
    scenes = [f"{film} scene {number}" for number in (1, 2, 3)]
    encoded = group(encode.si(scene, size) for scene in scenes for size in (480, 1080))
    flow = chain(encoded, publish.s(film)).enqueue()
    run_cluster()
    print(flow.wait(60))
    for step in flow.steps():
        print(f"  {step.state.lower():<12}{step.label or step.kind}")


if __name__ == "__main__":
    main()

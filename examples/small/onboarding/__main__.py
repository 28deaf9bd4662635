"""``python -m examples.small.onboarding``"""

import time

from examples.small.stage import begin, run_cluster


def main() -> None:
    begin("onboarding")
    from .tasks import onboard

    result = onboard.enqueue("ada@example.com")
    clusters = 0
    while not result.is_finished:
        run_cluster()  # each time a new cluster, as after a deploy
        clusters += 1
        time.sleep(0.1)
        result.refresh()
    print(f"Sent by {clusters} clusters, one after the other: {', '.join(result.return_value)}.")


if __name__ == "__main__":
    main()

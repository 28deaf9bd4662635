"""The steps of the pipeline."""

from stoker import job, task


@task
def encode(scene: str, size: int) -> str:
    """Encode a scene, and report the progress."""
    for frame in range(1, 5):
        job.progress(frame, total=4, message=f"frame {frame}")
    return f"{scene} at {size}p"


@task
def publish(files: list[str], film: str) -> str:
    """Publish all files of a film."""
    return f"{film} is published in {len(files)} files"

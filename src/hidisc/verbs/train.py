"""`hidisc train`: a PatchStore -> a Run with an encoder."""

from contextlib import ExitStack
from pathlib import Path

from hidisc.objectives.objective import load_settings
from hidisc.patches.store import PatchStore
from hidisc.paths import AnyPath
from hidisc.runs import begin, full_disk_said, hold
from hidisc.settings.training import TrainConfig
from hidisc.training.fit import Say, Watch, fit
from hidisc.training.ranks import first_does, start
from hidisc.training.run import RUN, Run, refuse_other_store
from hidisc.verbs.progress import show_training

_CHANGEABLE = ("data.threads", "data.ahead", "data.max_bad_share", "log.", "checkpoint.")
"""Settings that do not touch what is learned."""


def train(
    store_path: AnyPath,
    out: AnyPath,
    config: TrainConfig | None = None,
    *,
    device: str = "auto",
    devices: str | int = "auto",
    nodes: int = 1,
    say: Say = lambda _: None,
    watch: Watch | None = None,
) -> Run | None:
    """Learn an encoder from a store; an unfinished run goes on from its last checkpoint.

    On several devices every process calls this and only the first gets the run, the others None. `watch` is told of
    every step instead of a progress bar.
    """
    config, out = config or TrainConfig(), Path(out)
    config = config.model_copy(update={"objective": load_settings(config.objective).model_dump(mode="json")})
    store = PatchStore.load(store_path)
    with (
        start(config.compute.precision, device, devices, nodes) as fabric,
        ExitStack() as held,
        full_disk_said("What has been saved is whole"),
    ):
        is_first = fabric.is_global_zero

        def claim() -> None:
            held.enter_context(hold(Path(out)))
            begin(Path(out), "train", config, _CHANGEABLE)

        first_does(fabric, claim)
        if not (out / RUN).is_file():
            with show_training(config.optim.steps, shown=is_first and watch is None) as bar:
                fit(fabric, store, out, config, say, watch or bar)
    if not is_first:
        return None
    run = Run.load(out)
    refuse_other_store(out, run.info.store, store)
    return run

"""`hidisc audit`: Embeddings of some encoders -> how far they depend on site, scanner, batch, date and colour."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hidisc.artefacts.artefact import make
from hidisc.artefacts.inputs import STORE, ExpectedInputs
from hidisc.auditing.audit import AUDIT, Audit, AuditInfo, EncoderAudit
from hidisc.auditing.measure import run_audit
from hidisc.embeddings.embeddings import Embeddings, add_labels
from hidisc.evaluation.neighbours import choose_device
from hidisc.ground.errors import UserError
from hidisc.ground.files import AnyPath, full_disk_said, relate, write_atomic
from hidisc.ground.machine import versions
from hidisc.ground.progress import Say, ignore
from hidisc.reporting.audit import PAGE, write_audit
from hidisc.settings.audit import AuditConfig

_PACKAGES = ("hidisc", "numpy", "scikit-learn", "torch")


def audit(
    embeddings: Sequence[AnyPath],
    out: AnyPath,
    config: AuditConfig | None = None,
    *,
    device: str = "auto",
    say: Say = ignore,
) -> Audit:
    """Audit encoders by their embeddings, side by side; a finished audit stays."""
    config, out = config or AuditConfig(), Path(out)
    opened = [add_labels(Embeddings.load(path), config.label) for path in embeddings]
    if not opened:
        raise UserError("there is nothing to audit. Give embeddings that `hidisc embed` made.")
    inputs = {relate(made.path, out): made.artefact.checksum for made in opened}
    stores = {f"{STORE} of {relate(made.path, out)}": made for made in opened}
    inputs |= {name: _name_store(made) for name, made in stores.items()}
    inputs |= {
        f"the labels of {relate(made.path, out)}": made.labels_checksum for made in opened if made.labels_checksum
    }
    with (
        full_disk_said("The embeddings are as they were"),
        make(out, "audit", config, inputs) as work,
    ):
        if not work.is_finished(say):
            audits = [run_audit(made, config, choose_device(device), say) for made in opened]
            for name, made in stores.items():  # colours were read from it, or never
                ExpectedInputs(out, inputs).compare(name, _name_store(made), name)
            info = AuditInfo(
                encoders=_name_encoders(audits, opened, out),
                config=config.model_dump(mode="json"),
                versions=versions(*_PACKAGES),
                level_names=opened[0].info.level_names,
            )
            write_atomic(out / AUDIT, (info.model_dump_json(indent=1) + "\n").encode())
            work.finish([AUDIT, PAGE, *write_audit(info, config, out)])
    return Audit.load(out)


def _name_store(embeddings: Embeddings) -> str:
    """The checksum of the store whose colours are read; empty where it is gone, for the audit differs then."""
    store = embeddings.open_store()
    return "" if store is None else store.checksum


def _name_encoders(audits: Sequence[EncoderAudit], opened: Sequence[Embeddings], out: Path) -> tuple[EncoderAudit, ...]:
    """The audits with their embeddings as seen from `out`; encoders of one name have that of their folder behind it."""
    names, named = Counter(made.name for made in audits), []
    for made, embeddings in zip(audits, opened, strict=True):
        folder = f" ({embeddings.path.resolve().name})" if names[made.name] > 1 else ""
        update = {"name": f"{made.name}{folder}", "embeddings": relate(embeddings.path, out)}
        named.append(made.model_copy(update=update))
    return tuple(named)

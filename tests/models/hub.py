"""A hub on disk: what timm and hidisc would download is read from a folder, and no socket can be opened."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from huggingface_hub.errors import RemoteEntryNotFoundError, RepositoryNotFoundError
from safetensors.torch import save_file


class Hub:
    """Repositories as folders; `asked` are the files that were fetched, as `repo/file` (and `@revision`)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []

    def download(self, repo_id: str, filename: str, revision: str | None = None, **_: Any) -> str:
        """As `huggingface_hub.hf_hub_download`."""
        self.asked.append(f"{repo_id}/{filename}" + (f"@{revision}" if revision else ""))
        path = self.folder / repo_id / filename
        if not path.parent.is_dir():
            raise _missing(RepositoryNotFoundError, f"no repository {repo_id}")
        if not path.is_file():
            raise _missing(RemoteEntryNotFoundError, f"no {filename} in {repo_id}")
        return str(path)

    def add(self, repo: str, name: str, *, pickled: bool = False, args: dict[str, Any] | None = None, **notes: Any):
        """Put a model of timm with random weights there, as `timm.models.push_to_hf_hub` does; the model."""
        model = timm.create_model(name, **(args or {}))
        folder = self.folder / repo
        folder.mkdir(parents=True)
        if pickled:
            torch.save(model.state_dict(), folder / "pytorch_model.bin")
        else:
            save_file(model.state_dict(), folder / "model.safetensors")
        known = {name: model.pretrained_cfg[name] for name in ("first_conv", "classifier")}
        known |= {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "input_size": [3, 32, 32]}
        config = {
            "architecture": name,
            "num_classes": model.num_classes,
            "pretrained_cfg": {**known, "num_classes": model.num_classes, **notes},
        }
        (folder / "config.json").write_text(json.dumps(config | ({"model_args": args} if args else {})))
        return model


def _missing(kind: type[Exception], said: str) -> Exception:
    """An error of the hub without the HTTP response that its own constructor wants."""
    error = kind.__new__(kind)
    Exception.__init__(error, said)
    return error


def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every attempt to reach another machine fail the test."""

    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def make_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub in a folder, in the place of the one on the network."""
    no_network(monkeypatch)
    hub = Hub(folder)
    monkeypatch.setattr("hidisc.models.backbone.hf_hub_download", hub.download)
    monkeypatch.setattr("timm.models._hub.hf_hub_download", hub.download)
    return hub

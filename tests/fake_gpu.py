"""A GPU that is not there: torch's fake tensors on `cuda:0` have shapes and devices and no numbers.

Whatever mixes them with tensors or generators of the CPU raises, as on a real GPU. What makes the host wait for the
device is written down in `waits`: a number or a shape that only the device knows, a copy to the host, and a copy to the
device that does not come from page-locked memory. Where numbers are needed to go on, they are made up.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

CUDA = torch.device("cuda:0")
aten: Any = torch.ops.aten
FOUND = 3
"""Rows that `nonzero` and the like find, and every whole number that is asked for."""


class FakeGenerator(torch.Generator):
    """A generator that says which device it is of; a real one for CUDA needs a driver."""

    def __new__(cls, device: Any = "cpu") -> "FakeGenerator":
        generator = super().__new__(cls)
        generator.of = torch.device(device)
        return generator

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.of


class _Calls(TorchFunctionMode):
    """Sees what fake tensors let pass, generators of another device, and makes up the arrays that NumPy asks for."""

    def __init__(self) -> None:
        super().__init__()
        self._rng = np.random.default_rng(0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.numpy and isinstance(args[0], FakeTensor):
            return self._make_up(args[0])
        result, generator = func(*args, **kwargs), kwargs.get("generator")
        if generator is not None and generator.device.type != result.device.type:
            raise RuntimeError(
                f"Expected a '{result.device.type}' device type for generator but found '{generator.device.type}'"
            )
        return result

    def _make_up(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        if tensor.device.type != "cpu":
            raise TypeError(f"can't convert {tensor.device} device type tensor to numpy")
        kind = torch.empty((), dtype=tensor.dtype, device="meta").dtype
        numbers = self._rng.random(tuple(tensor.shape))
        return numbers < 0.5 if kind == torch.bool else numbers.astype(str(kind).removeprefix("torch."))


class _Operations(TorchDispatchMode):
    """Answers for the device where the host asks it, and writes down that it asked."""

    def __init__(self, waits: list[str]) -> None:
        super().__init__()
        self._waits = waits
        self._pinned: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket
        if (
            torch.is_inference_mode_enabled() and func.namespace == "aten"
        ):  # where operations come here before they are taken apart
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if name is aten._pin_memory:
            self._pinned.append(args[0].clone())
            return self._pinned[-1]
        if name is aten.is_pinned:
            return self._is_pinned(args[0])
        if name is aten._local_scalar_dense:
            return self._ask(func, args[0], FOUND if not args[0].is_floating_point() else 1.0)
        if name is aten.nonzero:
            return self._ask(func, args[0], args[0].new_empty((FOUND, args[0].ndim), dtype=torch.int64))
        if name is aten.bincount:
            return self._ask(func, args[0], args[0].new_empty(args[2] if len(args) > 2 else kwargs["minlength"]))
        if name is aten._to_copy:
            target = torch.device(kwargs.get("device") or args[0].device)
            self._note_copy(args[0], target, bool(kwargs.get("non_blocking")))
        if name is aten.copy_:
            self._note_copy(args[1], args[0].device, len(args) > 2 and bool(args[2]))
        return func(*args, **kwargs)

    def _ask(self, func: Any, tensor: Tensor, answer: Any) -> Any:
        if tensor.device.type == "cuda":
            self._waits.append(str(func))
        return answer

    def _is_pinned(self, tensor: Tensor) -> bool:
        return any(tensor is pinned for pinned in self._pinned)

    def _note_copy(self, source: Tensor, target: torch.device, non_blocking: bool) -> None:
        if source.device.type == "cuda" and target.type == "cpu":
            self._waits.append("a copy to the host")
        elif source.device.type == "cpu" and target.type == "cuda" and not (non_blocking and self._is_pinned(source)):
            self._waits.append("a copy from memory that is not page-locked")


@contextmanager
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Pretend that there is a GPU; what made the host wait for it."""
    waits: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(torch, "Generator", FakeGenerator)
        patch.setattr(torch.autograd, "_engine_run_backward", run_backward)
        patch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
        patch.setattr(torch.cuda, "is_bf16_supported", lambda *_: True)
        with FakeTensorMode(), _Operations(waits), _Calls():
            yield waits


def move(module: nn.Module) -> nn.Module:
    """The same module with fake parameters and buffers on the fake device, in the same memory layout."""
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is not None:
                part._parameters[name] = nn.Parameter(_empty(value), requires_grad=value.requires_grad)
        for name, value in part._buffers.items():
            if value is not None:
                part._buffers[name] = _empty(value)
    return module


def _empty(value: Tensor) -> Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=CUDA)


@torch.no_grad()
def run_backward(tensors: Any, gradients: Any, *_: Any, **__: Any) -> None:
    """The backward pass, node by node: torch's own engine asks the driver for streams before it begins."""
    ((root,), (gradient,)) = (tensors, gradients)
    waiting: dict[Any, dict[int, Tensor]] = defaultdict(dict)
    waiting[root.grad_fn][root.output_nr] = gradient
    for node in _from_last_to_first(root.grad_fn):
        given = waiting.pop(node, {})
        if not given:
            continue
        if hasattr(node, "variable"):  # a leaf
            _add_gradient(node.variable, given[0])
            continue
        outputs = _call(node, given)
        for (following, number), value in zip(node.next_functions, outputs, strict=False):
            if following is not None and value is not None:
                value = _fit(value, following, number)
                before = waiting[following].get(number)
                waiting[following][number] = value if before is None else before + value


def _call(node: Any, given: dict[int, Tensor]) -> tuple[Tensor | None, ...]:
    """Gradients of a node's inputs from those of its outputs, zero where there is none."""
    inputs = [
        given.get(number, torch.zeros(meta.shape, dtype=meta.dtype, device=meta.device))
        for number, meta in enumerate(node._input_metadata)
    ]
    outputs = node.apply(*inputs) if hasattr(node, "apply") else node(*inputs)  # ours, or torch's
    return outputs if isinstance(outputs, tuple) else (outputs,)


def _fit(value: Tensor, node: Any, number: int) -> Tensor:
    """A gradient as the next node takes it: summed over what was broadcast, in its precision."""
    meta = node.variable if hasattr(node, "variable") else node._input_metadata[number]
    return value.sum_to_size(meta.shape).to(meta.dtype)


def _add_gradient(parameter: Tensor, value: Tensor) -> None:
    if value.device != parameter.device:
        raise RuntimeError(f"found at least two devices, {parameter.device} and {value.device}, for a gradient")
    parameter.grad = value if parameter.grad is None else parameter.grad + value


def _from_last_to_first(root: Any) -> list[Any]:
    """Nodes of a graph, each before those that it hands gradients to."""
    done: list[Any] = []
    seen: set[Any] = set()
    stack = [(root, False)]
    while stack:
        node, is_left = stack.pop()
        if is_left:
            done.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(following, False) for following, _ in node.next_functions if following is not None]
    return done[::-1]

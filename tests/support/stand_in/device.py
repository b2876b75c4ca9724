"""Tensors that say `cuda` and compute on the CPU."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from . import operations
from .build import library
from .counts import Counts, line
from .trees import leaves_of, mapped

TWO_DEVICES = "Expected all tensors to be on the same device, but found at least two devices"


class OnDevice(Tensor):
    """A tensor of a stand-in device. host: where its numbers are. index: of the device."""

    host: Tensor
    index: int

    @staticmethod
    def __new__(cls, host: Tensor, index: int) -> OnDevice:
        assert not isinstance(host, OnDevice)
        made: OnDevice = Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
            device=torch.device("cuda", index),
        )
        made.host, made.index = host, index
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})

    def __repr__(self, **how: Any) -> str:  # type: ignore[override]
        return f"OnDevice({self.host!r}, cuda:{self.index})"

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **how: Any) -> Any:
        raise TypeError(f"can't convert cuda:{self.index} device type tensor to numpy; use Tensor.cpu() first")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("a tensor of the stand-in device is pickled")


class _World:
    """The devices that are present: their number, their generators, what was seen of them, pinned memory.

    copying: whether the host copies from pageable memory at this moment, which on CUDA it does itself.
    """

    def __init__(self) -> None:
        self.count = 0
        self.copying = False
        self.doubles = True
        self.seen = Counts()
        self.generators: list[torch.Generator] = []
        self.pinned: dict[int, int] = {}

    def index(self, device: torch.device) -> int:
        """Return which device is meant.

        Raises:
            RuntimeError: there is none of this number.
        """
        index = library().rk_selected() if device.index is None else device.index
        if index >= self.count:
            raise RuntimeError("CUDA error: invalid device ordinal")
        return index

    def pin(self, tensor: Tensor) -> Tensor:
        """Remember that a tensor of the host lies in pinned memory."""
        start = tensor.untyped_storage().data_ptr()
        self.pinned[start] = start + tensor.untyped_storage().nbytes()
        weakref.finalize(tensor, self.pinned.pop, start, None).atexit = False
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        return any(start <= tensor.data_ptr() < end for start, end in self.pinned.items())

    def up(self, tensor: Tensor, blocking: bool) -> None:
        """Count an upload; one that blocks waits for all that was launched before."""
        key = tuple(tensor.shape), line()
        if blocking:
            self.wait("an upload")
        self.seen.uploads[key] += 1
        self.seen.moved["up"] += tensor.numel() * tensor.element_size()
        if not self.is_pinned(tensor):
            self.seen.staged[key] += 1

    def wait(self, what: str) -> None:
        self.seen.waits[what, line()] += 1


WORLD = _World()


def _run(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], mode: Any = None) -> Any:
    """Do what the operation does, on the host; refuse and count as a device would."""
    leaves = leaves_of((args, kwargs))
    here = [leaf for leaf in leaves if isinstance(leaf, OnDevice)]
    wanted = kwargs.get("device")
    wanted = torch.device(wanted) if isinstance(wanted, str) else wanted
    to_device = wanted is not None and wanted.type == "cuda"
    if not here and not to_device:
        if kwargs.get("pin_memory"):
            return WORLD.pin(func(*args, **{**kwargs, "pin_memory": False}))
        return func(*args, **kwargs)
    if operations.is_composite(func):
        with mode or nullcontext():
            made = func.decompose(*args, **kwargs)
        if made is not NotImplemented:
            return made
    elsewhere = [leaf for leaf in leaves if isinstance(leaf, Tensor) and not isinstance(leaf, OnDevice)]
    _refuse(func, args, kwargs, here, elsewhere, leaves)
    index = WORLD.index(wanted) if to_device else here[0].index
    staged = sum(WORLD.seen.staged.values())
    to_host = _count(func, args, kwargs, here, wanted, index)
    copying = sum(WORLD.seen.staged.values()) > staged
    hosts = {id(tensor.host): tensor for tensor in here}
    args, kwargs = mapped(lambda leaf: leaf.host if isinstance(leaf, OnDevice) else leaf, (args, kwargs))
    if wanted is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    # In inference mode, too, a view of an ordinary tensor is an ordinary tensor.
    ordinary = operations.is_view(func) and not any(tensor.is_inference() for tensor in here)
    with (
        torch._C.DisableTorchFunction(),
        torch.inference_mode(False) if ordinary and torch.is_inference_mode_enabled() else nullcontext(),
        _drawing(WORLD.generators[index]) if operations.is_random(func) else nullcontext(),
    ):
        WORLD.copying = copying
        result = func(*args, **kwargs)
        WORLD.copying = False
        if to_host:
            return result

        def placed(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or isinstance(leaf, OnDevice):
                return leaf
            return hosts.get(id(leaf)) if id(leaf) in hosts else OnDevice(leaf, index)

        if any(isinstance(leaf, Tensor) and leaf.dtype == torch.float64 for leaf in leaves_of(result)):
            if not WORLD.doubles:
                raise TypeError("Cannot convert a tensor to float64: the device does not support it")
            WORLD.seen.doubles[line()] += not operations.is_free(func)
        return mapped(placed, result)


@contextmanager
def _drawing(generator: torch.Generator) -> Iterator[None]:
    """Draw from a device's generator instead of the host's."""
    before = torch.get_rng_state()
    torch.set_rng_state(generator.get_state())
    try:
        yield
    finally:
        generator.set_state(torch.get_rng_state())
        torch.set_rng_state(before)


def _refuse(
    func: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    here: list[OnDevice],
    elsewhere: list[Tensor],
    leaves: list[Any],
) -> None:
    """Raise what CUDA raises."""
    name = func.overloadpacket.__name__
    if len({tensor.index for tensor in here}) > 1 and name not in operations.COPIES:
        raise RuntimeError(f"{TWO_DEVICES}, cuda:0 and cuda:1! (in {func})")
    if name in operations.INDEXING and here and not isinstance(args[0], OnDevice):
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    if name in ("index_put", "index_put_", "_index_put_impl_") and here:
        values = args[2]
        if not isinstance(values, OnDevice) and values.dim():
            raise RuntimeError(f"{TWO_DEVICES}, cuda:0 and cpu! (values in {func})")
    elif here and elsewhere and name not in operations.COPIES | operations.INDEXING:
        wrong = [tensor for tensor in elsewhere if tensor.dim() or not operations.takes_scalars(func)]
        outputs = leaves_of(list(operations.written(func, args, kwargs)))
        if wrong or any(isinstance(out, Tensor) and not isinstance(out, OnDevice) for out in outputs):
            raise RuntimeError(f"{TWO_DEVICES}, cuda:0 and cpu! (in {func})")
    if any(isinstance(leaf, torch.Generator) and leaf.device.type != "cuda" for leaf in leaves):
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    if here and not (here[0].is_floating_point() or here[0].is_complex()):
        if name in operations.PRODUCTS:
            raise RuntimeError(f'"{name}_cuda" not implemented for {here[0].dtype}')
        if operations.floats_only(name):
            raise RuntimeError(f'"{name}_out_frame" not implemented for {here[0].dtype}')


def _count(
    func: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    here: list[OnDevice],
    wanted: torch.device | None,
    index: int,
) -> bool:
    """Count what the operation costs on a device; return whether its result is on the host."""
    name, seen = func.overloadpacket.__name__, WORLD.seen
    to_host = False
    if name == "copy_":
        to_host = not isinstance(args[0], OnDevice)
        if not isinstance(args[1], OnDevice):
            WORLD.up(args[1], blocking=not (args[2] if len(args) > 2 else kwargs.get("non_blocking")))
    elif name == "_to_copy":
        to_host = wanted is not None and wanted.type == "cpu"
        if not here:
            WORLD.up(args[0], blocking=not kwargs.get("non_blocking"))
    if to_host:
        source = args[name == "copy_"]
        WORLD.wait("a copy to the host")
        seen.moved["down"] += source.numel() * source.element_size()
    elif name in operations.WAITS and kwargs.get("output_size") is None:
        WORLD.wait(operations.WAITS[name])
    if name in operations.INDEXING:
        _count_indices(name, args)
    if not operations.is_free(func):
        seen.launches[name] += 1
        seen.lines[line()] += 1
        seen.on[index] += 1
        if name in operations.UNORDERED | operations.NEVER_ORDERED and _adds_floats(name, args, here):
            seen.unordered[name, line()] += 1
            if name in operations.NEVER_ORDERED and torch.are_deterministic_algorithms_enabled():
                _lacks_order(f"{name}_cuda")
    return to_host


def _lacks_order(name: str) -> None:
    """Say what torch says where it is asked for an order that an operation does not have."""
    said = f"{name} does not have a deterministic implementation, but you asked for one"
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(said)
    warnings.warn(said, UserWarning, stacklevel=2)


def _count_indices(name: str, args: tuple[Any, ...]) -> None:
    """Count the waits and uploads for the indices of an operation."""
    given = [index for index in args[1] if index is not None]
    # One value put at the places of one mask is a masked_fill, whose shape is known.
    fills = "put" in name and len(given) == 1 and not isinstance(args[2], OnDevice) and args[2].numel() == 1
    for index in given:
        if index.dtype in (torch.bool, torch.uint8) and not fills:
            WORLD.wait("a mask as an index")
        if not isinstance(index, OnDevice):
            WORLD.up(index, blocking=True)


def _adds_floats(name: str, args: tuple[Any, ...], here: list[OnDevice]) -> bool:
    if not here or not (here[0].is_floating_point() or here[0].is_complex()):
        return False
    return "index_put" not in name or (len(args) > 3 and bool(args[3]))  # without accumulation it only writes


class _Attention(torch.autograd.Function):
    """Scaled dot-product attention by the kernel that the CPU takes, counted as one launch."""

    @staticmethod
    def forward(ctx: Any, options: dict[str, Any], *inputs: Any) -> Any:
        WORLD.seen.launches["attention"] += 1
        WORLD.seen.lines[line()] += 1
        hosts = [tensor.host if isinstance(tensor, OnDevice) else tensor for tensor in inputs]
        needed = ctx.needs_input_grad[1:]
        with torch.inference_mode(False), torch.enable_grad():
            if any(needed):
                hosts = [h if h is None else h.detach().requires_grad_(n) for h, n in zip(hosts, needed, strict=True)]
                ctx.hosts, ctx.result = hosts, _SDPA(*hosts, **options)
                return OnDevice(ctx.result.detach(), inputs[0].index)
        return OnDevice(_SDPA(*hosts, **options), inputs[0].index)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # type: ignore[override]
        WORLD.seen.launches["attention backward"] += 1
        WORLD.seen.unordered["attention backward", "backward"] += 1
        asked = [host for host in ctx.hosts if host is not None and host.requires_grad]
        with torch.enable_grad():
            host_gradients = iter(
                torch.autograd.grad(ctx.result, asked, gradients[0].host, retain_graph=True)
            )  # for a next one
        index = gradients[0].index
        return None, *(
            OnDevice(next(host_gradients), index) if host is not None and host.requires_grad else None
            for host in ctx.hosts
        )


_SDPA = functional.scaled_dot_product_attention


def _attention(query: Any, key: Any, value: Any, attn_mask: Any = None, *more: Any, **options: Any) -> Any:
    options |= dict(zip(("dropout_p", "is_causal"), more, strict=False))
    if not isinstance(query, OnDevice):
        return _SDPA(query, key, value, attn_mask, **options)
    given = [tensor for tensor in (query, key, value, attn_mask) if tensor is not None]
    if not all(isinstance(tensor, OnDevice) for tensor in given):
        raise RuntimeError(f"{TWO_DEVICES}, cuda:0 and cpu! (in scaled_dot_product_attention)")
    return _Attention.apply(options, query, key, value, attn_mask)


_INTERPOLATE = functional.interpolate


def _interpolate(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Interpolate as the CPU does; on CUDA torch takes another way, which rounds otherwise, where order is asked."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        return _INTERPOLATE(input, *args, **kwargs)
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


class _Functions(TorchFunctionMode):
    """What does not reach the dispatcher as it would on a device."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor):
            return self._made(func, args, kwargs)
        if func is _SDPA:
            return _attention(*args, **kwargs)
        if func is Tensor.pin_memory:
            return WORLD.pin(args[0].clone())
        if func is Tensor.is_pinned:
            return WORLD.is_pinned(args[0])
        return func(*args, **kwargs)

    @staticmethod
    def _made(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = kwargs.get("device")
        if func is Tensor.new_tensor:
            device = args[0].device if device is None else device
            func, args = torch.tensor, args[1:]
        elif isinstance(args[0], OnDevice) and device is None and func is not torch.tensor:
            return args[0]
        if device is None or torch.device(device).type != "cuda":
            return func(*args, **kwargs)
        kwargs = {name: value for name, value in kwargs.items() if name != "device"}
        grad = kwargs.pop("requires_grad", False)
        made = func(*args, **kwargs).to(device)
        return made.requires_grad_() if grad else made


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {}, self)


def prepare() -> None:
    """Tell torch about the devices. To be called before the first backward of the process, which counts them."""
    library()


@contextmanager
def devices(count: int = 1, doubles: bool = True) -> Iterator[Counts]:
    """In here there are `count` CUDA devices; what is given counts what is done with them.

    doubles: whether they have float64, which Apple's do not.
    """
    WORLD.count, WORLD.seen, WORLD.doubles = count, Counts(), doubles
    WORLD.generators = [torch.Generator().manual_seed(index) for index in range(count)]
    overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
    # A parameter of the host cannot become one of the device in place: `Module.to` makes new ones, as it may.
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    library().rk_present(count)
    try:
        # Functions of torch.nn.functional look each other up, unseen by a mode.
        named = {"scaled_dot_product_attention": _attention, "interpolate": _interpolate}
        replaced = mock.patch.multiple(functional, **named)
        with mock.patch.multiple(torch.cuda, **_cuda()), _seeds(), _threads(), replaced, _Functions(), _Operations():
            yield WORLD.seen
    finally:
        library().rk_present(0)
        library().rk_select(0)
        torch.__future__.set_overwrite_module_params_on_conversion(overwrite)
        WORLD.count = 0


def _threads() -> Any:
    """Let threads that begin in here see the devices, too."""
    run = threading.Thread.run

    def with_devices(thread: threading.Thread) -> None:
        with _Functions(), _Operations():
            run(thread)

    return mock.patch.object(threading.Thread, "run", with_devices)


def _seeds() -> Any:
    """Let torch.manual_seed reach the stand-in's generators, too."""
    named = {name: getattr(torch.cuda, name) for name in ("manual_seed", "manual_seed_all")}
    return mock.patch.multiple(torch.cuda.random, **named)


def _cuda() -> dict[str, Any]:
    """Return what replaces functions of torch.cuda."""

    def which(device: Any = None) -> int:
        if isinstance(device, int):
            return WORLD.index(torch.device("cuda", device))
        return WORLD.index(torch.device("cuda" if device is None else device))

    def select(device: Any) -> None:
        library().rk_select(which(device))

    def exchange(index: int) -> int:
        before = int(library().rk_selected())
        if index >= 0:
            library().rk_select(which(index))
        return before

    def synchronize(device: Any = None) -> None:
        WORLD.wait("synchronize")

    def seed(number: int) -> None:
        WORLD.generators[which()].manual_seed(number)

    def seed_all(number: int) -> None:
        for generator in WORLD.generators:
            generator.manual_seed(number)

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*args: Any, **kwargs: Any) -> Any:
            WORLD.seen.calls[name] += 1
            return call(*args, **kwargs)

        return asked

    properties = SimpleNamespace(name="Stand-in", total_memory=16 * 2**30, multi_processor_count=64, major=9, minor=0)
    functions: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *args, **kwargs: True,
        "device_count": lambda: WORLD.count,
        "current_device": lambda: which(),
        "set_device": select,
        "synchronize": synchronize,
        "empty_cache": lambda: None,
        "get_device_name": lambda device=None: "Stand-in",
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: properties,
        "mem_get_info": lambda device=None: (16 * 2**30, 16 * 2**30),
        "get_rng_state": lambda device=None: WORLD.generators[which(device)].get_state(),
        "set_rng_state": lambda state, device=None: WORLD.generators[which(device)].set_state(state) and None,
        "manual_seed": seed,
        "manual_seed_all": seed_all,
    }
    hidden: dict[str, Callable[..., Any]] = {
        "_lazy_init": lambda: None,
        "_is_in_bad_fork": lambda: False,
        "_exchange_device": exchange,
        "_maybe_exchange_device": exchange,
    }
    return {name: counted(name, call) for name, call in functions.items()} | hidden

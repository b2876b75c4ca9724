"""Compile the C++ side of the stand-in device, once for each torch."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("guard.cpp")


@lru_cache(maxsize=1)
def why_not() -> str:
    """Return why there can be no stand-in here; empty where there can."""
    if torch.cuda.is_available():
        return "a real CUDA device is at hand"
    if compiler() is None:
        return "the stand-in device needs a C++ compiler (c++, g++ or clang++)"
    try:
        _built()
    except subprocess.CalledProcessError as fault:
        last = (fault.stderr.strip().splitlines() or ["no message"])[-1]
        return f"the C++ side of the stand-in device does not compile: {last}"
    except (OSError, PermissionError) as fault:
        return f"the C++ side of the stand-in device cannot be built: {fault}"
    return ""


def compiler() -> str | None:
    return next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """Return the library, registered with torch. To be called before the first backward of the process."""
    loaded = ctypes.CDLL(str(_built()))
    loaded.rk_register()
    return loaded


def _built() -> Path:
    """Return the compiled library; it is kept for the next process with the same torch."""
    root = Path(torch.__file__).parent
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode() + str(root).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"robustkit-stand-in-{os.getuid()}-{key}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022:
        raise PermissionError(f"{folder} belongs to someone else, or others may write to it")
    built = folder / "guard.so"
    if built.is_file():
        return built
    fresh = folder / f"guard-{os.getpid()}.so"
    command = [str(compiler()), "-std=c++20", "-O0", "-w", "-fPIC", "-shared", str(SOURCE), "-o", str(fresh)]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}", f"-I{root / 'include'}"]
    command += [f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{root / 'lib'}"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    fresh.replace(built)  # in one step: other processes may build it at the same time
    return built

"""Where JAX can compute on this machine, or why it cannot: found out without starting what is not there.

JAX itself reports a missing driver late and in many words, so the facts are looked up first: the package, the
device's own library, the device file of the driver.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

#: device -> (JAX's name of the platform, packages of which one must be there, what to install, device files)
DEVICES = {
    "cuda": ("cuda", ("jax-cuda13-plugin", "jax-cuda12-plugin"), "jax[cuda13]", ("/dev/nvidia*", "/dev/dxg")),
    "rocm": ("rocm", ("jax-rocm7-plugin", "jax-rocm60-plugin"), "jax[rocm7-local]", ("/dev/kfd",)),
    "tpu": ("tpu", ("libtpu", "libtpu-nightly"), "jax[tpu]", ("/dev/accel*", "/dev/vfio/*")),
}
#: JAX's own client for processors: what the tests run on.
HOST = "cpu"
OLDEST = (0, 10)


def version(package: str) -> str | None:
    """The installed version of a package, found without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def missing(platform: str) -> str | None:
    """None if programs can run on this platform, else why not."""
    found = version("jax")
    if found is None or version("jaxlib") is None:
        return "JAX is not installed: pip install 'trivet[xla]'"
    if tuple(map(int, found.split(".")[:2])) < OLDEST:
        return f"JAX {found} is too old, {OLDEST[0]}.{OLDEST[1]} is needed: pip install -U 'trivet[xla]'"
    if platform in DEVICES:
        _, packages, line, files = DEVICES[platform]
        plugin = next((p for p in packages if version(p)), None)
        if plugin is None:
            return f"JAX {found} is here without its {platform} plugin: pip install '{line}=={found}'"
        if not any(list(Path("/").glob(pattern[1:])) for pattern in files):
            return f"no {platform} device: none of {', '.join(files)} is there"
    return _unstartable(platform)


@cache
def _unstartable(platform: str) -> str | None:
    try:
        devices(platform)
    except (RuntimeError, AssertionError, ImportError) as error:
        return f"JAX finds no {platform} device: {str(error).splitlines()[0] if str(error) else 'no reason'}"
    return None


@cache
def jax() -> Any:
    """The library, imported when first used, and silent."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import jax as library

    return library


@cache
def devices(platform: str) -> tuple[Any, ...]:
    """The devices of a platform; raises what JAX does if there are none."""
    name = DEVICES[platform][0] if platform in DEVICES else platform
    return tuple(jax().devices(name))

"""Where JAX can compute on this machine, or why it cannot: found out without starting what is not there.

JAX itself reports a missing driver late and in many words, so the facts are looked up first: the package, the
device's own library, the device file of the driver.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from trivet.backends.packages import failure, numbers, unforked, version

#: device -> (JAX's name of the platform, packages of which one must be there, what to install, device files)
DEVICES = {
    "cuda": ("cuda", ("jax-cuda13-plugin", "jax-cuda12-plugin"), "jax[cuda13]", ("/dev/nvidia*", "/dev/dxg")),
    "rocm": ("rocm", ("jax-rocm7-plugin", "jax-rocm60-plugin"), "jax[rocm7-local]", ("/dev/kfd",)),
    "tpu": ("tpu", ("libtpu", "libtpu-nightly"), "jax[tpu]", ("/dev/accel*", "/dev/vfio/*")),
}
#: JAX's own client for processors: what the tests run on.
HOST = "cpu"
OLDEST = (0, 10)


def missing(platform: str) -> str | None:
    """None if programs can run on this platform, else why not."""
    found, core = version("jax"), version("jaxlib")
    if found is None or core is None:
        return "JAX is not installed: pip install 'trivet[xla]'"
    if numbers(found) < OLDEST:
        return f"JAX {found} is too old, {OLDEST[0]}.{OLDEST[1]} is needed: pip install -U 'trivet[xla]'"
    if platform in DEVICES:
        _, packages, line, files = DEVICES[platform]
        plugin = next((p for p in packages if version(p)), None)
        if plugin is None:
            return f"JAX {found} is here without its {platform} plugin: pip install '{line}=={found}'"
        if platform == "cuda" and numbers(version(plugin) or "") != numbers(core):
            return f"{plugin} {version(plugin)} does not fit jaxlib {core}: pip install '{line}=={found}'"
        if not any(list(Path("/").glob(pattern[1:])) for pattern in files):
            return f"no {platform} device: none of {', '.join(files)} is there"
    return _unstartable(platform)


@cache
def _unstartable(platform: str) -> str | None:
    if reason := _refused_flags() or failure(jax):
        return f"JAX does not start: {reason}"
    if _left_out(platform):
        return f"JAX_PLATFORMS is {jax().config.jax_platforms!r:.60}, which leaves out {platform}"
    if reason := failure(lambda: devices(platform)):
        return f"JAX finds no {platform} device: {reason}"
    return None


def _refused_flags() -> str | None:
    """What XLA has against XLA_FLAGS: it would end this process, so another one is asked."""
    asked = os.environ.get("XLA_FLAGS") and "jaxlib" not in sys.modules
    if not asked or not Path(sys.executable).name.startswith("python"):
        return None
    code = "from jaxlib import xla_client; xla_client.CompileOptions()"
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, errors="replace", env=env
    )
    said = re.search(r"^[EF]\d[^]]*\] (.*)$", done.stderr, re.M)
    return f"{said[1]:.300}" if done.returncode and said else None


def _left_out(platform: str) -> bool:
    """Whether JAX was told to start other platforms only."""
    told = (jax().config.jax_platforms or "").split(",")
    wanted = {DEVICES[platform][0], "gpu"} if platform in DEVICES else {platform}
    return told != [""] and not wanted & set(told)


@cache
def jax() -> Any:
    """The library, imported when first used, and silent."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import jax as library

    return library


@cache
def devices(platform: str) -> tuple[Any, ...]:
    """The devices of a platform; raises what JAX does if there are none."""
    unforked("JAX")
    name = DEVICES[platform][0] if platform in DEVICES else platform
    return tuple(jax().devices(name))

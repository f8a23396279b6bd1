"""Tests that take `device` run on every device that is there."""

import pytest

from trivet.runtime import devices


@pytest.fixture(params=[d.name for d in devices() if d.available])
def device(request):
    return request.param

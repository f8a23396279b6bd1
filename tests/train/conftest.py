"""Tiny models by family, each made once per file of tests."""

import pytest


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    import hf_oracle

    made = {}

    def get(family="llama"):
        if family not in made:
            made[family] = hf_oracle.make(tmp_path_factory.mktemp(family), family)
        return made[family]

    return get

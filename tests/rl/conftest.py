"""What the tests of the loop share."""

from __future__ import annotations

import pytest

from logra_lab.rl.tokenizer import character_tokenizer
from tests.rl.models import llama


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    llama().save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return str(folder)

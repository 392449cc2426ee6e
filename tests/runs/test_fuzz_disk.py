"""Every file on disk is harmed in every way: the same result, or one line with its name."""

import os
import random

import pytest
from fuzz_disk import CASES, QUICK, fuzz

SEED = int(os.environ.get("LRA_FUZZ_SEED", random.randrange(2**32)))


def test_harm_to_what_neither_trains_nor_draws(tmp_path):
    tried, failed = fuzz(5, 0, tmp_path, [case for case in CASES if case.name in QUICK])
    assert tried == 5 and not failed, "\n".join(failed)


@pytest.mark.slow
def test_harm_to_every_kind_of_file(tmp_path):
    print(f"LRA_FUZZ_SEED={SEED}")
    tried, failed = fuzz(150, SEED, tmp_path)
    print(f"{tried} tried, {tried - len(failed)} held")
    assert not failed, "\n".join([f"LRA_FUZZ_SEED={SEED}", *failed])

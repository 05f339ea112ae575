"""What the padding costs is added up over all prefill steps."""

import pytest

from neuron_sched_lab.scheduler import NeuronScheduler, PaddedScheduler
from tests.scheduler.holes import drive


@pytest.mark.parametrize("cls", [PaddedScheduler, NeuronScheduler])
def test_total_padding_tokens(cls):
    driver = drive(cls, neuron_config={"num_batched_tokens_buckets": [32, 128]})
    for name, length in (("A", 20), ("B", 100), ("C", 150)):
        driver.add(name, length, max_tokens=5)
    driver.run()
    # C in chunks of 128 and 22.
    assert driver.scheduler.total_padding_tokens == 12 + 28 + 0 + 10

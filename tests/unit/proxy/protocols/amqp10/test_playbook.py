"""The model peers keep their own rules, and notice when one is broken."""

import pytest
from amqp10_playbook.trial import Direct, Trial


@pytest.mark.parametrize("seed", range(60))
def test_two_peers_without_anything_between(seed: int) -> None:
    trial = Trial(seed, Direct(), closes=seed % 3 == 0).run()
    assert seed % 3 == 0 or sum(trial.outcomes.values()) > 0

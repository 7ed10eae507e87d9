"""Recorded connections through a session that refuses nothing: the peers see no difference."""

from random import Random

import pytest
from playbook.captures import CAPTURES, Capture
from playbook.trial import Trial

from proxy.deciding.batch import Side


@pytest.mark.parametrize("longest", [1, 6, 64, 1000, 30_000])
@pytest.mark.parametrize("capture", CAPTURES, ids=str)
def test_recorded_connection_passes_byte_for_byte(capture: Capture, longest: int) -> None:
    trial = Trial(lambda _: False, wants_responses=True)
    trial.play(capture.to_broker, capture.to_client, Random(longest), longest)
    trial.end()
    assert trial.closed is None
    assert trial.received[Side.BROKER] == capture.to_broker
    assert trial.received[Side.CLIENT] == capture.to_client
    trial.check(ended=True)


@pytest.mark.parametrize("capture", CAPTURES, ids=str)
def test_nothing_of_a_real_client_is_undecodable(capture: Capture) -> None:
    trial = Trial(lambda _: False)
    trial.play(capture.to_broker, capture.to_client, Random(0), 10_000)
    assert trial.counters.undecodable == {}
    assert trial.session.between_frames(Side.CLIENT)
    assert trial.session.between_frames(Side.BROKER)

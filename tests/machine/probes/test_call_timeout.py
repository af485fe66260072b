"""Questions that cannot be cut short: an answer in time, none in time, and one that is an error."""

import time

import pytest

from studio.machine.probes.call_timeout import limit
from tests.each_time import rarely


def test_an_answer_in_time_and_one_that_never_comes():
    assert limit(lambda: 7, 5.0) == 7
    started_s = time.monotonic()
    assert limit(lambda: time.sleep(5), 0.1) is None
    assert time.monotonic() - started_s < 2


@pytest.mark.parametrize("error", [ValueError("wrong"), rarely(TimeoutError("its own"))])
def test_an_error_is_no_silence(error):
    def fail():
        raise error

    with pytest.raises(type(error), match=str(error)):
        limit(fail, 5.0)

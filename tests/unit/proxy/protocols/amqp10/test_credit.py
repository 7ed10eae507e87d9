"""The credit of one link. In ``test_credit_model`` both peers compute it, too."""

import pytest

from proxy.protocols.amqp10.credit import (
    FIRST_WINDOW,
    Advance,
    Credit,
    LinkFlow,
    Unpaid,
    UnpaidOfClients,
    unwrapped,
    wrapped,
)

ALL = 0xFFFFFFFF


def granted(credit: Credit, permits: int = 1 << 20) -> LinkFlow:
    credit.grant(min(permits, credit.wanted()))
    return credit.to_sender()


def wide(limit: int, window: int = 64) -> Credit:
    """Return the credit of a link after much traffic: its unused credit may be the whole window."""
    credit = Credit(0)
    credit.window = window
    credit.flow_of_receiver(0, limit, False)
    return credit


def test_serial_numbers_wrap() -> None:
    assert wrapped(1 << 32) == 0
    assert unwrapped(0, ALL) == 1 << 32
    assert unwrapped(ALL, 1 << 32) == ALL
    assert unwrapped(ALL, 0) == -1
    assert unwrapped(5, 3) == 5


def test_the_sender_gets_the_granted_credit() -> None:
    credit = Credit(ALL - 1)
    credit.flow_of_receiver(ALL - 1, 170, False)
    assert credit.to_sender() == (ALL - 1, 0, False)
    assert granted(credit) == (ALL - 1, FIRST_WINDOW, False)
    credit.note_received(2)
    assert granted(credit, 3) == (0, 3, False)


def test_a_window_doubles_when_it_was_used_up() -> None:
    credit = Credit(0)
    credit.flow_of_receiver(0, 1000, False)
    asked = []
    for _ in range(6):
        asked.append(credit.wanted())
        credit.grant(asked[-1])
        credit.note_received(asked[-1])
    assert asked == [FIRST_WINDOW << each for each in range(6)]


def test_a_window_doubles_where_there_is_plenty() -> None:
    credit = wide(100, 4)
    assert credit.wanted() == 4
    credit.grant(4, plenty=True)
    # It must use that much first.
    assert credit.window == 4
    credit.note_received(2)
    credit.grant(credit.wanted(), plenty=True)
    assert credit.window == 4
    credit.note_received(2)
    credit.grant(credit.wanted())
    assert credit.window == 4
    credit.note_received(2)
    credit.grant(credit.wanted(), plenty=True)
    assert credit.window == 8
    credit.note_received(1)
    assert credit.wanted() == 5


def test_nothing_is_asked_for_before_half_of_a_window_is_used() -> None:
    credit = wide(1000, 10)
    granted(credit)
    credit.note_received(4)
    assert credit.wanted() == 0
    credit.note_received()
    assert credit.wanted() == 5


def test_an_idle_link_requests_no_more_and_keeps_its_permits() -> None:
    credit = wide(1000)
    credit.grant(1)
    assert (credit.wanted(), credit.prepaid, credit.granted - credit.sent) == (0, 1, 1)
    credit.note_received()
    assert (credit.wanted(), credit.take_due()) == (64, 0)


def test_credit_announced_by_the_compiled_extension_is_kept() -> None:
    credit = Credit(0)
    credit.flow_of_receiver(0, 10, False)
    credit.grant_all()
    assert credit.flowed((0, 12, None, 0, False, True), (0, 12)) == 0
    credit.note_received(2)
    credit.flow_of_receiver(0, 14, False)
    credit.grant_all()
    assert credit.to_sender() == (2, 12, False)


class TestUnpaid:
    S = 1_000_000_000

    def of(self, burst: int = 5, most: int = 20) -> Unpaid:
        unpaid = Unpaid(0)
        unpaid.limit(Advance(2_000_000, burst, most))
        return unpaid

    def test_there_is_as_much_as_the_tightest_limit_lets_through(self) -> None:
        unpaid = self.of()
        assert unpaid.left(0) == 5
        unpaid.take(5)
        assert (unpaid.left(0), unpaid.left(self.S), unpaid.left(10 * self.S)) == (0, 2, 5)

    def test_prepaid_credit_is_refunded_and_grows_up_to_a_bound(self) -> None:
        unpaid = self.of()
        for _ in range(100):
            unpaid.take(5)
            unpaid.note_prepaid(5)
        assert (unpaid.left(0), unpaid.left(100 * self.S)) == (5, 20)
        unpaid.note_overdraft((), 100 * self.S)
        assert unpaid.left(100 * self.S) == 5

    def test_unused_credit_is_refunded(self) -> None:
        unpaid = self.of()
        unpaid.take(4)
        unpaid.take(-3)
        assert unpaid.left(0) == 4

    def test_another_limit_forgives_nothing(self) -> None:
        unpaid = self.of()
        unpaid.take(4)
        unpaid.limit(Advance(2_000_000, 3, 6))
        assert unpaid.left(0) == 0
        unpaid.limit(Advance(2_000_000, 50, 60))
        assert unpaid.left(0) == 46

    def test_credit_is_paid_for_a_while_like_the_last_messages(self) -> None:
        unpaid = self.of()
        unpaid.note_overdraft(("q",), 0)  # type: ignore[arg-type]
        assert unpaid.pays(9 * self.S)
        assert not unpaid.pays(10 * self.S)
        assert unpaid.paid_for == ()

    def test_all_connections_of_a_client_have_one(self) -> None:
        clients = UnpaidOfClients()
        assert clients.of("192.0.2.1", (), 0) is clients.of("192.0.2.1", (), 5)
        assert clients.of("192.0.2.2", (), 0) is not clients.of("192.0.2.1", (), 0)


class TestDrain:
    def test_all_of_the_credit_used(self) -> None:
        credit = wide(6, 4)
        granted(credit)
        credit.flow_of_receiver(0, 6, True)
        credit.note_received(4)
        # It may have more.
        assert credit.flow_of_sender(4, 0, True) is None
        assert granted(credit) == (4, 2, True)
        credit.note_received(2)
        assert credit.flow_of_sender(6, 0, True) == (6, 0, True)

    def test_grants_that_cross_answers_end(self) -> None:
        credit = wide(100, 8)
        assert granted(credit, 2) == (0, 2, False)
        credit.flow_of_receiver(0, 100, True)
        assert credit.to_sender() == (0, 2, True)
        # Requested before it drained, granted while the answer is in flight.
        assert credit.grant(3)
        assert credit.to_sender() == (0, 5, True)
        assert credit.flow_of_sender(2, 0, True) is None
        # The answer to the second flow is in flight, too. A third one would cross it, and so on.
        assert credit.wanted() == 0
        assert credit.flow_of_sender(5, 0, True) == (100, 0, True)
        assert credit.limit == credit.sent == 100

    @pytest.mark.parametrize("limit", [100, 5])
    def test_an_answer_perhaps_to_an_earlier_drain_is_requested_again(self, limit: int) -> None:
        credit = wide(limit, 8)
        assert granted(credit, 2) == (0, 2, False)
        credit.flow_of_receiver(0, limit, True)
        assert credit.to_sender() == (0, 2, True)
        # All of it is used. This sender does not answer that.
        credit.note_received(2)
        assert credit.grant(3)
        assert credit.to_sender() == (2, 3, True)
        # It answers only the first now, and discards the credit of the second, though it has messages.
        assert credit.flow_of_sender(5, 0, True) is None
        assert (credit.sent, credit.granted, credit.offset, credit.prepaid) == (2, 2, 3, 0)
        assert credit.wanted() == min(limit - 2, 8)
        assert credit.grant(1)
        assert credit.to_sender() == (5, 1, True)
        # That answers the third.
        assert credit.flow_of_sender(6, 0, True) == (limit, 0, True)
        assert credit.sent == credit.limit == limit


class TestAttach:
    def test_a_flow_may_name_a_number_that_it_cannot_know(self) -> None:
        credit = Credit()
        credit.flow_of_receiver(0, 100, False)
        assert granted(credit) == (0, FIRST_WINDOW, False)
        credit.attached(ALL - 1)
        # The earlier count is kept: the sender has two more.
        assert (credit.sent, credit.granted, credit.limit) == (-2, FIRST_WINDOW, 100)


def test_clients_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.protocols.amqp10.credit._MAX_CLIENTS", 3)
    clients = UnpaidOfClients()
    kept = clients.of("a", (), 0)
    for address in ("b", "c", "d", "e"):
        clients.of(address, (), 0)
        assert clients.of("a", (), 0) is kept
    assert len(clients._known) == 3

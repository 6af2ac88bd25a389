from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from acclimate.serve.fair import FairQueue

CLIENTS = st.sampled_from("abcd")


@given(st.lists(st.one_of(CLIENTS, st.none()), max_size=60))
def test_first_come_first_served_per_client_and_turns_between_them(steps):
    """None takes an item, a letter puts one of this client."""
    queue = FairQueue()
    waiting = {}
    since = Counter()
    for number, client in enumerate(steps):
        if client is not None:
            queue.put(client, (client, number))
            waiting.setdefault(client, []).append(number)
        elif waiting:
            client, number = queue.take()
            assert number == waiting[client].pop(0)
            for other in waiting:
                since[other] += other != client
            assert max(since.values()) < 4  # nobody waits while another is served twice
            since[client] = 0
            waiting = {name: items for name, items in waiting.items() if items}
        else:
            assert queue.take() is None
        assert len(queue) == sum(map(len, waiting.values())) == len(list(queue))


def test_clients_take_turns_unless_they_pause():
    queue = FairQueue()
    for item in ("a1", "a2", "a3", "b1", "c1", "c2"):
        queue.put(item[0], item)
    assert queue.take(pausing="ab") == "c1"
    assert queue.take(lambda item: item.endswith("3")) == "a3"
    assert [queue.take() for _ in range(5)] == ["b1", "c2", "a1", "a2", None]


def test_dropped_items_are_gone():
    queue = FairQueue()
    for item in ("a1", "a2", "b1"):
        queue.put(item[0], item)
    assert queue.drop("a", lambda item: item == "a1") == 1
    assert queue.drop("b", lambda item: True) == 1
    assert queue.drop("nobody", lambda item: True) == 0
    assert list(queue) == ["a2"]

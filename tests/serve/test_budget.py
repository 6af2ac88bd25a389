import time
from threading import Event, Thread

from acclimate.serve.budget import Budget


class Waiting:
    """An image that waits for its pixels in a thread, and holds them until it is told to end."""

    def __init__(self, budget, client, pixels):
        self.started = Event()
        self.end = Event()
        self.thread = Thread(target=self.hold, args=(budget, client, pixels))
        before = budget._came
        self.thread.start()
        while budget._came == before:
            time.sleep(0.001)

    def hold(self, budget, client, pixels):
        with budget.hold(client, pixels):
            self.started.set()
            self.end.wait(30)

    def finish(self):
        self.end.set()
        self.thread.join(30)


def test_small_images_of_others_do_not_delay_a_large_one():
    budget = Budget(300)
    first = [Waiting(budget, client, 80) for client in "ab"]
    large = Waiting(budget, "c", 200)
    beside = Waiting(budget, "d", 100)  # leaves the large one its room
    beyond = Waiting(budget, "e", 30)  # fits now, but would not beside the large one
    assert beside.started.wait(30)
    first[0].finish()
    assert not beyond.started.wait(0.05)
    assert not large.started.is_set()
    first[1].finish()
    assert large.started.wait(30)
    assert not beyond.started.wait(0.05)
    large.finish()
    assert beyond.started.wait(30)
    for each in (beside, beyond):
        each.finish()
    assert not budget._held


def test_an_image_that_waits_for_others_of_its_client_delays_nobody():
    budget = Budget(300)
    first = Waiting(budget, "a", 150)
    own = Waiting(budget, "a", 200)
    later = Waiting(budget, "a", 1)
    other = Waiting(budget, "b", 150)
    assert other.started.wait(30)
    assert not later.started.wait(0.05)  # its turn is after the one before
    first.finish()
    assert not own.started.wait(0.05)
    other.finish()
    assert own.started.wait(30)
    own.finish()
    assert later.started.wait(30)
    later.finish()
    assert not budget._waiting


def test_the_budget_leaves_room_for_other_clients():
    budget = Budget(300)
    order = []

    def hold(client, pixels):
        with budget.hold(client, pixels):
            order.append((client, pixels))

    with budget.hold("a", 1000):  # counts as all that a client may have
        again = Thread(target=hold, args=("a", 1))
        again.start()
        hold("b", 100)
        large = Thread(target=hold, args=("b", 101))
        large.start()
        hold("c", 99)
        assert order == [("b", 100), ("c", 99)]
    again.join(30)
    large.join(30)
    assert sorted(order[2:]) == [("a", 1), ("b", 101)]
    assert not budget._held

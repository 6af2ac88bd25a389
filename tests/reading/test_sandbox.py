import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import psutil
import pytest

import hostile_decoder
from acclimate.errors import ImageError, ModelError
from acclimate.images.opening import open_image, thumbnail
from acclimate.reading import sandbox
from acclimate.reading.sandbox import Decoder, DecodeTask, do, portable
from acclimate.reading.walk import Preparer
from drawn_images import draw, encoded
from hostile_images import fax
from hostile_images import png as one_bit_png
from slow_preprocess import SIZES, Trouble
from waiting import wait_until

PIXELS = 1_000_000
NOT_BASE64 = "cannot be read: it is not base64; URLs are not fetched, send the image itself"


TROUBLE = {name: encoded(draw("red", 1, size)) for name, size in SIZES.items()}
GOOD = encoded(draw("green", 2))


class Model:
    """A model that encodes nothing and prepares images with a given function."""

    def __init__(self, prepare):
        self.prepare = prepare


PREPROCESS = Trouble(32, 32, 32, "bicubic", (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))


@pytest.fixture
def prepare():
    return Preparer(Model(PREPROCESS))


@pytest.fixture
def decoder():
    started = Decoder(PIXELS)
    yield started
    started.close()


def task_of(prepare, content=GOOD, position=0, size=0, most=PIXELS, seconds=60.0):
    return DecodeTask(content, portable(prepare), position, size, most, seconds)


def decode(decoder, prepare, content=GOOD, **options):
    return decoder.decode(task_of(prepare, content, **options))


def test_a_decoder_process_answers_tasks(prepare):
    header, pixels, picture = do(task_of(prepare, size=16), PIXELS)
    expected = np.stack(prepare(0, open_image(GOOD)))
    assert json.loads(header)["cost"] == 60 * 48
    assert pixels.tobytes() == expected.tobytes()
    assert picture == thumbnail(open_image(GOOD), 16)
    assert do(task_of(prepare, most=60 * 48 - 1), PIXELS) == [b'{"cost": 2880}']


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("no", {"image_error": NOT_BASE64}),
        ("https://example.org/a.png", {"image_error": NOT_BASE64}),
        ("\ud800é", {"image_error": NOT_BASE64}),
        (b"", {"image_error": "cannot be read: the file is empty"}),
        (TROUBLE["fail"], {"error": "RuntimeError: no processor"}),
    ],
)
def test_messages_about_bad_images(prepare, content, answer):
    assert [json.loads(part) for part in do(task_of(prepare, content), PIXELS)] == [answer]


def test_damage_is_found_while_decoding(prepare):
    (answer,) = do(task_of(prepare, GOOD[: len(GOOD) // 2] + GOOD[-12:]), PIXELS)
    assert json.loads(answer)["image_error"].startswith("cannot be read: ")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not bound the memory of a process")
def test_memory_is_bounded_and_the_process_goes_on(decoder, prepare):
    decoder.start()
    process = decoder._process
    with pytest.raises(ImageError, match="cannot be read: it needs too much memory"):
        decode(decoder, prepare, TROUBLE["memory"])
    decode(decoder, prepare)
    assert decoder._process is process


def test_images_are_prepared_as_by_the_encoder_itself(decoder, prepare):
    for seed in range(3):
        picture = encoded(draw("blue", seed))
        for content in (picture, b64encode(picture).decode()):
            cost, inputs, small = decode(decoder, prepare, content, size=32)
            expected = prepare(0, open_image(picture))
            assert cost == 60 * 48
            assert len(inputs) == len(expected) == 1
            np.testing.assert_array_equal(inputs[0], expected[0])
            assert small == thumbnail(open_image(picture), 32)


def test_views_are_those_of_the_same_place_in_the_stream(decoder):
    prepare = Preparer(Model(PREPROCESS), views=4, seed=3)
    _, inputs, _ = decode(decoder, prepare, position=7)
    np.testing.assert_array_equal(inputs, np.stack(prepare(7, open_image(GOOD))))


def test_a_model_with_its_own_way_to_prepare_gets_the_pixels(decoder):
    prepare = Preparer(Model(lambda image: np.asarray(image).sum(axis=2)))
    assert portable(prepare) is None
    _, pixels, _ = decode(decoder, prepare)
    np.testing.assert_array_equal(pixels, np.asarray(open_image(GOOD)))


@pytest.mark.parametrize(
    ("trouble", "error", "message"),
    [
        ("work", ImageError, "^took longer than 0.2 s to decode$"),
        ("sleep", ImageError, "^took longer than 0.2 s to decode$"),
        ("crash", ImageError, "^cannot be read: its decoder crashed or ran out of memory$"),
        ("fail", ModelError, "could not prepare an image: RuntimeError: no processor"),
    ],
)
def test_a_failure_concerns_one_image_only(decoder, prepare, trouble, error, message):
    with pytest.raises(error, match=message):
        decode(decoder, prepare, TROUBLE[trouble], seconds=0.2 if "0.2 s" in message else 60.0)
    decode(decoder, prepare)


def test_an_image_of_a_higher_cost_is_not_decoded(decoder, prepare):
    assert decode(decoder, prepare, TROUBLE["work"], most=3263) == (3264, None, b"")
    assert decode(decoder, prepare)[0] == 60 * 48


@pytest.mark.parametrize("trouble", ["work", "sleep"])
def test_a_slow_image_counts_as_one_of_the_largest_cost(decoder, prepare, trouble):
    assert decode(decoder, prepare, TROUBLE[trouble], most=PIXELS - 1, seconds=0.2) == (PIXELS, None, b"")
    assert decode(decoder, prepare)[0] == 60 * 48


def test_closing_stops_what_runs(decoder, prepare, monkeypatch):
    decode(decoder, prepare)
    with ThreadPoolExecutor(1) as pool:
        asked = Event()
        ask = decoder._ask
        monkeypatch.setattr(decoder, "_ask", lambda task: asked.set() or ask(task))
        held = pool.submit(decode, decoder, prepare, TROUBLE["sleep"])
        assert asked.wait(180)
        time.sleep(0.2)
        decoder.close()
        with pytest.raises(ImageError, match="crashed"):
            held.result(180)


@pytest.mark.parametrize("kills", [1, 2])
def test_an_image_whose_decoder_was_killed_from_outside_is_tried_once_more(decoder, prepare, monkeypatch, kills):
    """A system that is short of memory kills the decoders of good images."""
    ask = decoder._ask
    left = [decoder._process] * kills

    def ask_a_dying_process(task):
        if left:
            left.pop()
            os.kill(decoder._process.pid, signal.SIGKILL)
        return ask(task)

    monkeypatch.setattr(decoder, "_ask", ask_a_dying_process)
    if kills == 1:
        assert decode(decoder, prepare)[0] == 60 * 48
    else:
        with pytest.raises(ImageError, match="crashed"):
            decode(decoder, prepare)
    assert not left
    assert decode(decoder, prepare)[0] == 60 * 48


def test_many_processes_start_and_decode_at_once(prepare):
    decoders = [Decoder(PIXELS) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(4):
            assert len(list(pool.map(lambda each: decode(each, prepare), decoders))) == 8
    for each in decoders:
        each.close()


def test_a_process_that_cannot_start_is_reported(monkeypatch, decoder, prepare):
    def fail(*args, **options):
        raise OSError("no more processes")

    monkeypatch.setattr(sandbox.CONTEXT, "Process", fail)
    with pytest.raises(ModelError, match="could be started \\(no more processes\\); try again later"):
        decode(decoder, prepare)


def message(**answer):
    return json.dumps(answer).encode().hex()


COST = message(cost=9)
PIXEL = bytes(4 * 3 * 32 * 32).hex()
LIES = {
    "nothing": ["00"],
    "a list": ["5b5d"],
    "deep": ["5b" * 60_000],
    "no cost": [message(size=1)],
    "cost 0": [message(cost=0)],
    "a cost that is text": [message(cost="9")],
    "a cost that is true": [message(cost=True)],
    "a cost above the limit": [message(cost=PIXELS + 1)],
    "a long answer": ["20" * 100_000],
    "too many views": [COST, PIXEL * 2, ""],
    "too little": [COST, PIXEL[:-2], ""],
    "too much": [COST, PIXEL + "00", ""],
    "a long thumbnail": [COST, PIXEL, "00" * 100_000],
}


@pytest.fixture
def lying(monkeypatch):
    """Return a decoder whose process sends what it is asked to."""
    monkeypatch.setattr(sandbox, "work", hostile_decoder.work)
    started = Decoder(PIXELS)
    yield started
    started.close()


@pytest.mark.parametrize("lie", LIES)
def test_answers_of_a_decoder_are_not_trusted(lying, prepare, lie):
    with pytest.raises(ImageError, match=r"^cannot be read: its decoder crashed or ran out of memory$"):
        decode(lying, prepare, json.dumps(LIES[lie]))
    assert decode(lying, prepare, json.dumps([COST, PIXEL, ""]))[1].flags.writeable


@pytest.mark.parametrize(
    "size", [None, [], [3], [0, 1], [2, 5], [3, 3, 1], [10**9, 10**9], ["1", 1], [9.0, 1], {"a": 1}]
)
def test_the_pixel_count_of_a_decoder_is_not_trusted(lying, size):
    own = Preparer(Model(lambda image: np.asarray(image)))
    with pytest.raises(ImageError, match="crashed"):
        decode(lying, own, json.dumps([message(cost=9, size=size), "00" * 24, ""]))
    with pytest.raises(ImageError, match="crashed"):
        decode(lying, own, json.dumps([message(cost=9, size=[2, 5]), "00" * 30, ""]))
    assert decode(lying, own, json.dumps([message(cost=9, size=[3, 3]), "07" * 27, ""]))[1].sum() == 7 * 27


@pytest.mark.parametrize("parts", [["stop"], [COST, "stop"], [COST, PIXEL, "stop"]])
def test_half_an_answer_is_not_awaited_for_ever(lying, prepare, parts):
    with pytest.raises(ImageError, match=r"^took longer than 0\.2 s to decode$"):
        decode(lying, prepare, json.dumps(parts), seconds=0.2)


def test_a_decoder_that_reads_nothing_is_stopped(lying, prepare, monkeypatch):
    monkeypatch.setattr(sandbox, "work", hostile_decoder.deaf)
    with pytest.raises(ImageError, match=r"^took longer than 0\.2 s to decode$"):
        decode(lying, prepare, bytes(4 * 2**20), seconds=0.2)


def test_larger_images_than_pillow_allows_are_read_if_the_service_allows_them(prepare):
    decoder = Decoder(200_000_000)
    try:
        assert decode(decoder, prepare, one_bit_png(14_000, 14_000)) == (14_000 * 14_000, None, b"")
    finally:
        decoder.close()


SCRIPT = """
import os, sys, threading, time
sys.path.insert(0, {tests!r})
from acclimate.reading.walk import Preparer
from acclimate.reading.sandbox import Decoder, DecodeTask, portable
from slow_preprocess import Trouble

prepare = Preparer(type("Model", (), {{"prepare": Trouble(8, 8, 8, "bicubic", (0, 0, 0), (1, 1, 1))}})())
decoder = Decoder(1_000_000)

def decode(content, seconds):
    return decoder.decode(DecodeTask(content, portable(prepare), 0, 0, 1_000_000, seconds))

decode(bytes.fromhex({good!r}), 60.0)
if {busy}:
    threading.Thread(target=decode, args=(bytes.fromhex({work!r}), 2.0), daemon=True).start()
    time.sleep(0.2)
print(decoder._process.pid, flush=True)
{end}
"""


PRINTING = """
import sys
from acclimate.reading.sandbox import Decoder, DecodeTask, do
task = DecodeTask(sys.stdin.buffer.read(), None, 0, 0, 10**6, 60.0)
decoder = Decoder(10**6)
print(len(do(task, 10**6) if "here" in sys.argv else decoder.decode(task)))
decoder.close()
"""


def test_output_of_libraries_does_not_reach_the_output_of_the_service():
    for where, complains in (("here", True), ("apart", False)):
        ran = subprocess.run([sys.executable, "-c", PRINTING, where], input=fax(600), capture_output=True, timeout=300)
        assert (b"Fax3" in ran.stderr) == complains, ran.stderr
        assert where == "here" or (ran.stdout, ran.stderr) == (b"3\n", b""), ran


@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals of Unix")
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("end", ["sys.exit()", "time.sleep(60)"])
def test_no_process_outlives_its_service(busy, end, tmp_path):
    """A program without a guard of __main__ that ends without `close`, or is killed."""
    tests = str(Path(__file__).parents[1] / "support")
    work = TROUBLE["work"].hex()
    (tmp_path / "script.py").write_text(SCRIPT.format(tests=tests, good=GOOD.hex(), work=work, busy=busy, end=end))
    with subprocess.Popen([sys.executable, tmp_path / "script.py"], stdout=subprocess.PIPE, text=True) as service:
        (pid,) = map(int, service.stdout.readline().split())
        if "sleep" in end:
            for number in (signal.SIGTERM, signal.SIGINT):  # systemd or a terminal sends them to all processes
                os.kill(pid, number)
            service.kill()
        service.wait(180)
    wait_until(lambda: not psutil.pid_exists(pid))


def test_an_image_does_not_pay_for_a_decoder_that_died_while_it_was_idle(decoder, prepare):
    first = decode(decoder, prepare)
    idle = decoder._process
    os.kill(idle.pid, signal.SIGKILL)
    wait_until(lambda: not idle.is_alive())
    np.testing.assert_array_equal(decode(decoder, prepare)[1], first[1])

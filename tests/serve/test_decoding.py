import io
import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from pathlib import Path
from threading import Event

import numpy as np
import pytest

import hostile_decoder
from acclimate.errors import ImageError, ModelError
from acclimate.images.opening import open_image, thumbnail
from acclimate.reading.walk import Preparer
from acclimate.serve import decoding
from acclimate.serve.decoding import Decoders, DecodeTask, do, portable
from drawn_images import draw
from hostile_images import fax
from hostile_images import png as one_bit_png
from slow_preprocess import SIZES, Trouble
from waiting import wait_until

PIXELS = 1_000_000


def png(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


TROUBLE = {name: png(draw("red", 1, size)) for name, size in SIZES.items()}
GOOD = png(draw("green", 2))


class Model:
    """A model that encodes nothing and prepares images with a given function."""

    def __init__(self, prepare):
        self.prepare = prepare


PREPROCESS = Trouble(32, 32, 32, "bicubic", (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))


@pytest.fixture
def prepare():
    return Preparer(Model(PREPROCESS))


@pytest.fixture
def decoders():
    started = Decoders(PIXELS, 60.0, 2 * PIXELS)
    yield started
    started.close()


def decode(decoders, prepare, content=GOOD, client="", admit=lambda pixels: None, size=0):
    return decoders.decode(DecodeTask(content, portable(prepare), 0, size), prepare, client, admit)


def ask(task, *messages, pixels=PIXELS):
    """Run a process's main function in this process, and return its answers."""
    ours, theirs = Pipe()
    with ours, theirs:
        for message in (task, *messages):
            ours.send(message)
        do(theirs, pixels, 60.0)
        answers = []
        while ours.poll():
            answers.append(ours.recv_bytes())
        return answers


def test_a_decoder_process_answers_tasks(prepare):
    cost, header, pixels, picture = ask(DecodeTask(GOOD, portable(prepare), 0, 16), 1)
    assert json.loads(cost) == {"cost": 60 * 48}
    expected = np.stack(prepare(0, open_image(GOOD)))
    assert json.loads(header) == {"shape": list(expected.shape)}
    assert pixels == expected.tobytes()
    assert picture == thumbnail(open_image(GOOD), 16)
    assert ask(DecodeTask(GOOD, portable(prepare), 0, 0), None)[1:] == [b"{}"]


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("no", {"image_error": "is not base64; URLs are not fetched, send the image itself"}),
        ("https://example.org/a.png", {"image_error": "is not base64; URLs are not fetched, send the image itself"}),
        ("\ud800é", {"image_error": "is not base64; URLs are not fetched, send the image itself"}),
        (b"", {"image_error": "cannot be read: the file is empty"}),
        (TROUBLE["fail"], {"error": "RuntimeError: no processor"}),
    ],
)
def test_messages_about_bad_images(prepare, content, answer):
    assert json.loads(ask(DecodeTask(content, portable(prepare), 0, 0), 1)[-1]) == answer


def test_damage_is_found_while_decoding(prepare):
    answers = ask(DecodeTask(GOOD[: len(GOOD) // 2] + GOOD[-12:], portable(prepare), 0, 0), 1)
    assert json.loads(answers[-1])["image_error"].startswith("cannot be read: ")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not bound the memory of a process")
def test_memory_is_bounded_and_the_process_goes_on(decoders, prepare):
    with pytest.raises(ImageError, match="cannot be read: it needs too much memory"):
        decode(decoders, prepare, TROUBLE["memory"])
    (process,) = decoders._idle
    decode(decoders, prepare)
    assert decoders._idle == [process]


def test_a_process_can_start_before_there_is_an_image(decoders, prepare):
    decoders.warm_up()
    (process,) = decoders._idle
    decode(decoders, prepare)
    assert decoders._idle == [process]


def test_images_are_prepared_as_by_the_encoder_itself(decoders, prepare, pictures):
    for picture in pictures[:3]:
        for content in (picture, b64encode(picture).decode()):
            inputs, small = decode(decoders, prepare, content, size=32)
            expected = prepare(0, open_image(picture))
            assert len(inputs) == len(expected) == 1
            np.testing.assert_array_equal(inputs[0], expected[0])
            assert small == thumbnail(open_image(picture), 32)
    assert len(decoders._idle) == 1  # one is enough for one thread


def test_views_are_those_of_the_same_place_in_the_stream(decoders):
    prepare = Preparer(Model(PREPROCESS), views=4, seed=3)
    inputs, _ = decoders.decode(DecodeTask(GOOD, portable(prepare), 7, 0), prepare, "", lambda pixels: None)
    np.testing.assert_array_equal(np.stack(inputs), np.stack(prepare(7, open_image(GOOD))))


def test_a_model_with_its_own_way_to_prepare_gets_the_pixels(decoders):
    prepare = Preparer(Model(lambda image: np.asarray(image).sum(axis=2)))
    assert portable(prepare) is None
    inputs, _ = decode(decoders, prepare)
    np.testing.assert_array_equal(inputs[0], np.asarray(open_image(GOOD)).sum(axis=2))


@pytest.mark.parametrize(
    ("trouble", "error", "message"),
    [
        ("work", ImageError, "^took longer than 0.2 s to decode$"),
        ("sleep", ImageError, "^took longer than 0.2 s to decode$"),
        ("crash", ImageError, "^cannot be read: its decoder crashed or ran out of memory$"),
        ("fail", ModelError, "could not prepare an image: RuntimeError: no processor"),
    ],
)
def test_a_failure_concerns_one_image_only(prepare, trouble, error, message):
    decoders = Decoders(PIXELS, 0.2 if "0.2 s" in message else 60.0, PIXELS)
    with pytest.raises(error, match=message):
        decode(decoders, prepare, TROUBLE[trouble])
    decoders._decode_s = 60.0  # limit of the process that replaces it
    decode(decoders, prepare)
    decoders.close()


def test_an_image_that_is_not_admitted_is_not_decoded(decoders, prepare):
    def refuse(pixels):
        raise ImageError(f"{pixels} pixels")

    with pytest.raises(ImageError, match="3264 pixels"):
        decode(decoders, prepare, TROUBLE["work"], admit=refuse)
    assert decode(decoders, prepare)[1] == b""
    assert len(decoders._idle) == 1


def test_closing_stops_what_runs(prepare):
    decoders = Decoders(PIXELS, 60.0, PIXELS)
    begun = Event()
    decode(decoders, prepare)
    with ThreadPoolExecutor(2) as pool:
        held = [pool.submit(decode, decoders, prepare, TROUBLE["sleep"], admit=lambda _: begun.set()) for _ in "ab"]
        assert begun.wait(30)
        decoders.close()
        for future in held:
            with pytest.raises(ImageError, match="crashed"):
                future.result(30)
    with pytest.raises(ImageError, match="crashed"):
        decode(decoders, prepare)
    decoders.close()
    assert not decoders._busy
    assert not decoders._idle


def test_many_services_decode_at_once(prepare):
    services = [Decoders(PIXELS, 60.0, PIXELS) for _ in range(8)]
    with ThreadPoolExecutor(16) as pool:
        done = list(pool.map(lambda each: decode(each, prepare), services * 4))
    assert len(done) == 32
    for each in services:
        each.close()


def test_a_process_that_cannot_start_is_reported(monkeypatch, decoders, prepare):
    def fail(*args):
        raise OSError("no more processes")

    monkeypatch.setattr(decoding, "_Process", fail)
    with pytest.raises(ModelError, match="could be started \\(no more processes\\); try again later"):
        decode(decoders, prepare)


def message(**answer):
    return json.dumps(answer).encode().hex()


COST = message(cost=9)
SHAPE = message(shape=[1, 3, 32, 32])
PIXEL = bytes(4 * 3 * 32 * 32).hex()
LIES = {
    "nothing": [["00"]],
    "a list": [["5b5d"]],
    "deep": [["5b" * 60_000]],
    "no cost": [[message(size=1)]],
    "cost 0": [[message(cost=0)]],
    "a cost that is text": [[message(cost="9")]],
    "a cost that is true": [[message(cost=True)]],
    "a cost above the limit": [[message(cost=PIXELS + 1)]],
    "a long answer": [["20" * 100_000]],
    "no shape": [[COST], [message(dtype="uint8")]],
    "too many views": [[COST], [message(shape=[2, 3, 32, 32]), PIXEL * 2, ""]],
    "another size": [[COST], [message(shape=[1, 3, 64, 16]), PIXEL, ""]],
    "objects": [[COST], [message(shape=[1, 3, 32, 32], dtype="object"), PIXEL * 2, ""]],
    "a huge array": [[COST], [message(shape=[10**6, 10**6, 3])]],
    "too little": [[COST], [SHAPE, PIXEL[:-2], ""]],
    "too much": [[COST], [SHAPE, PIXEL + "00", ""]],
    "a long thumbnail": [[COST], [SHAPE, PIXEL, "00" * 100_000]],
}


@pytest.fixture
def lying(monkeypatch, request):
    """Return decoders whose processes send what they are asked to, with a short time limit if asked for."""
    monkeypatch.setattr(decoding, "work", hostile_decoder.work)
    started = Decoders(PIXELS, getattr(request, "param", 60.0), PIXELS)
    yield started
    started.close()


impatient = pytest.mark.parametrize("lying", [0.2], indirect=True)


@pytest.mark.parametrize("lie", LIES)
def test_answers_of_a_decoder_are_not_trusted(lying, prepare, lie):
    with pytest.raises(ImageError, match=r"^cannot be read: its decoder crashed or ran out of memory$"):
        decode(lying, prepare, json.dumps(LIES[lie]))
    assert not lying._idle
    assert decode(lying, prepare, json.dumps([[COST], [SHAPE, PIXEL, ""]]))[0][0].flags.writeable


@pytest.mark.parametrize(
    "shape", [[], [3], [0, 1, 3], [-1, -1, 3], [2, 5, 3], [3, 3, 1], [10**9, 10**9, 3], ["1", 1, 3]]
)
def test_the_pixel_count_of_a_decoder_is_not_trusted(lying, shape):
    own = Preparer(Model(lambda image: np.asarray(image)))
    with pytest.raises(ImageError, match="crashed"):
        decode(lying, own, json.dumps([[COST], [message(shape=shape), "00" * 30, ""]]))
    assert decode(lying, own, json.dumps([[COST], [message(shape=[3, 3, 3]), "07" * 27, ""]]))[0][0].sum() == 7 * 27


@impatient
@pytest.mark.parametrize(
    "parts", [[["stop"]], [[COST], ["stop"]], [[COST], [SHAPE, "stop"]], [[COST], [SHAPE, PIXEL, "stop"]]]
)
def test_half_an_answer_is_not_awaited_for_ever(lying, prepare, parts):
    with pytest.raises(ImageError, match=r"^took longer than 0\.2 s to decode$"):
        decode(lying, prepare, json.dumps(parts))


@impatient
def test_a_decoder_that_reads_nothing_is_stopped(lying, prepare, monkeypatch):
    monkeypatch.setattr(decoding, "work", hostile_decoder.deaf)
    with pytest.raises(ImageError, match=r"^took longer than 0\.2 s to decode$"):
        decode(lying, prepare, bytes(4 * 2**20))


def test_larger_images_than_pillow_allows_are_read_if_the_service_allows_them(prepare):
    content = one_bit_png(14_000, 14_000)
    costs = []

    def refuse(pixels):
        costs.append(pixels)
        raise ImageError("enough")

    decoders = Decoders(200_000_000, 60.0, 300_000_000)
    with pytest.raises(ImageError, match="enough"):
        decode(decoders, prepare, content, admit=refuse)
    assert costs == [14_000 * 14_000]
    decoders.close()


def test_processes_are_ended_while_others_may_decode(decoders, prepare, monkeypatch):
    ended = []
    end = decoding._Process.end

    def watched(process):
        ended.append(decoders._lock.locked())
        end(process)

    monkeypatch.setattr(decoding._Process, "end", watched)
    with pytest.raises(ImageError, match="crashed"):
        decode(decoders, prepare, TROUBLE["crash"])
    decode(decoders, prepare)
    decoders.close()
    assert ended == [False, False]


def test_an_image_that_is_not_wanted_any_more_does_not_wait(decoders, prepare):
    gone = Event()
    with ThreadPoolExecutor(1) as pool, decoders._budget.hold("a", 2 * PIXELS):
        waiting = pool.submit(
            decoders.decode, DecodeTask(GOOD, portable(prepare), 0, 0), prepare, "a", lambda _: None, gone.is_set
        )
        while not decoders._budget._waiting:
            time.sleep(0.01)
        gone.set()
        with pytest.raises(ImageError, match=r"^is not wanted any more$"):
            waiting.result(30)
        assert not decoders._busy
    decode(decoders, prepare)
    assert len(decoders._idle) == 1


SCRIPT = """
import os, sys, threading, time
sys.path.insert(0, {tests!r})
from acclimate.reading.walk import Preparer
from acclimate.serve.decoding import Decoders, DecodeTask, portable
from slow_preprocess import Trouble

prepare = Preparer(type("Model", (), {{"prepare": Trouble(8, 8, 8, "bicubic", (0, 0, 0), (1, 1, 1))}})())
decoders = Decoders(1_000_000, 2.0, 1_000_000)

def decode(content, admit=lambda pixels: None):
    return decoders.decode(DecodeTask(content, portable(prepare), 0, 0), prepare, "", admit)

decode(bytes.fromhex({good!r}))
if {busy}:
    threading.Thread(target=decode, args=(bytes.fromhex({work!r}),), daemon=True).start()
    while not decoders._busy:
        time.sleep(0.01)
print(*[each._process.pid for each in (*decoders._idle, *decoders._busy)], flush=True)
{end}
"""


PRINTING = """
import sys
from acclimate.serve.decoding import Decoders, DecodeTask, decode, examine
content, here = sys.stdin.buffer.read(), "here" in sys.argv
task, decoders = DecodeTask(content, None, 0, 0), Decoders(10**6, 60.0, 10**6)
try:
    decode(examine(content, 10**6), task) if here else decoders.decode(task, lambda index, image: [image], "", print)
finally:
    decoders.close()
"""


def test_output_of_libraries_does_not_reach_the_output_of_the_service():
    for where, complains in (("here", True), ("apart", False)):
        ran = subprocess.run([sys.executable, "-c", PRINTING, where], input=fax(600), capture_output=True, timeout=60)
        assert (b"Fax3" in ran.stderr) == complains, ran.stderr
        assert where == "here" or (ran.stdout, ran.stderr) == (b"4800\n", b""), ran


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
        service.wait(30)
    for _ in range(1000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.03)
    pytest.fail(f"process {pid} still runs")


def test_an_image_does_not_pay_for_a_decoder_that_died_while_it_was_idle(decoders, prepare):
    first = decode(decoders, prepare)
    (idle,) = decoders._idle
    os.kill(idle._process.pid, signal.SIGKILL)
    wait_until(lambda: not idle.runs)
    np.testing.assert_array_equal(decode(decoders, prepare)[0], first[0])


def test_a_decoder_that_does_not_start_leaves_nothing_behind(decoders, prepare, monkeypatch):
    def ended(process):
        raise EOFError

    monkeypatch.setattr(decoding._Process, "_answer", ended)
    with pytest.raises(ModelError, match="could be started"):
        decode(decoders, prepare)
    assert not decoding.WATCH._processes
